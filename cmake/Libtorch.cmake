# Defines tessera::libtorch from the folder of a torch wheel (its include/ and lib/), found without importing torch.
# Order: -DTESSERA_TORCH=DIR, $TESSERA_TORCH, <project>/.deps/torch, the active Python's site-packages.
# libtorch_python is never linked. TorchConfig.cmake is not used: it pollutes RUNPATH and needs a CUDA toolkit on CUDA wheels.
set(TESSERA_TORCH "$ENV{TESSERA_TORCH}" CACHE PATH "torch package folder (holds include/ and lib/)")
set(_torch "${TESSERA_TORCH}")
if(NOT _torch AND EXISTS "${PROJECT_SOURCE_DIR}/.deps/torch/lib/libtorch_cpu.so")
  set(_torch "${PROJECT_SOURCE_DIR}/.deps/torch")
endif()
if(NOT _torch)
  execute_process(
    COMMAND python3 -c "import importlib.util as u; s=u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${_torch}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch not found (looked at '${_torch}'). Run scripts/setup.sh, or set TESSERA_TORCH to the "
                      "folder of an installed torch 2.11 to 2.13.")
endif()
file(STRINGS "${_torch}/version.py" _version REGEX "__version__ = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" TESSERA_TORCH_VERSION "${_version}")
if(TESSERA_TORCH_VERSION VERSION_LESS 2.11 OR TESSERA_TORCH_VERSION VERSION_GREATER_EQUAL 2.14)
  message(FATAL_ERROR "torch ${TESSERA_TORCH_VERSION} in '${_torch}': 2.11 to 2.13 is supported.")
endif()
message(STATUS "libtorch ${TESSERA_TORCH_VERSION}: ${_torch}")

add_library(tessera_libtorch INTERFACE)
add_library(tessera::libtorch ALIAS tessera_libtorch)
target_include_directories(tessera_libtorch SYSTEM INTERFACE
  "${_torch}/include" "${_torch}/include/torch/csrc/api/include")
# NDEBUG is part of libtorch's ABI (class layouts depend on it), in every build type.
target_compile_definitions(tessera_libtorch INTERFACE NDEBUG)
if(EXISTS "${_torch}/lib/libtorch_cuda.so")
  set(_undefined "LINKER:--allow-shlib-undefined")  # of NVIDIA's libraries, which a machine that only builds need not have
endif()
target_link_directories(tessera_libtorch INTERFACE "${_torch}/lib")
target_link_options(tessera_libtorch INTERFACE
  "LINKER:--disable-new-dtags" "LINKER:-rpath,${_torch}/lib" "LINKER:--no-as-needed" ${_undefined})
# libtorch.so loads libtorch_cpu.so and, in a torch with CUDA, libtorch_cuda.so: so the same program runs beside both.
target_link_libraries(tessera_libtorch INTERFACE torch torch_cpu c10)
# at::parallel_for is inline OpenMP. One runtime only: the wheel's libgomp, which libtorch_cpu needs anyway.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(tessera_libtorch INTERFACE -fopenmp)
  if(EXISTS "${_torch}/lib/libgomp.so.1")
    target_link_libraries(tessera_libtorch INTERFACE "${_torch}/lib/libgomp.so.1")
  else()
    target_link_libraries(tessera_libtorch INTERFACE gomp)
  endif()
endif()
