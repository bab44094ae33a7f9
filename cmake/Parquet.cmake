# Parquet is read where Arrow's C++ library is found: the pyarrow wheel carries its headers and shared libraries.
# Order: -DTESSERA_PYARROW=DIR, $TESSERA_PYARROW, the active Python's site-packages. Without it --dataset_name refuses .parquet
# files with a sentence that says how to convert them. -DTESSERA_PYARROW=OFF: do not look.
set(TESSERA_PYARROW "$ENV{TESSERA_PYARROW}" CACHE STRING "pyarrow package folder (holds include/ and libparquet.so.*), or OFF")
set(_pyarrow "${TESSERA_PYARROW}")
if(NOT _pyarrow)
  if(NOT _pyarrow STREQUAL "OFF")
    execute_process(
      COMMAND python3 -c "import importlib.util as u; s=u.find_spec('pyarrow'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE _pyarrow OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
elseif(NOT EXISTS "${_pyarrow}/include/parquet/arrow/reader.h")
  message(FATAL_ERROR "TESSERA_PYARROW: '${_pyarrow}' is not the folder of an installed pyarrow (no include/parquet).")
endif()
set(TESSERA_HAVE_PARQUET OFF)
if(_pyarrow AND EXISTS "${_pyarrow}/include/parquet/arrow/reader.h")
  file(GLOB _parquet_libs "${_pyarrow}/libparquet.so.*")
  file(GLOB _arrow_libs "${_pyarrow}/libarrow.so.*")
  if(_parquet_libs AND _arrow_libs)
    list(GET _parquet_libs 0 _parquet_lib)
    list(GET _arrow_libs 0 _arrow_lib)
    add_library(tessera_arrow INTERFACE)
    target_include_directories(tessera_arrow SYSTEM INTERFACE "${_pyarrow}/include")
    target_link_libraries(tessera_arrow INTERFACE "${_parquet_lib}" "${_arrow_lib}")
    target_link_options(tessera_arrow INTERFACE "LINKER:-rpath,${_pyarrow}")
    set(TESSERA_HAVE_PARQUET ON)
    message(STATUS "Parquet: ${_pyarrow}")
  endif()
endif()
if(NOT TESSERA_HAVE_PARQUET)
  message(STATUS "Parquet: no pyarrow found, .parquet files will be refused (set TESSERA_PYARROW to read them)")
endif()

# Adds the reader to the room `data`.
function(tessera_add_parquet target)
  if(TESSERA_HAVE_PARQUET)
    target_sources(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src/data/parquet/parquet_rows.cc")
    set_source_files_properties("${PROJECT_SOURCE_DIR}/src/data/parquet/parquet_rows.cc" PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
    target_compile_definitions(${target} PRIVATE TESSERA_HAVE_PARQUET)
    target_link_libraries(${target} PRIVATE tessera_arrow)
  endif()
endfunction()
