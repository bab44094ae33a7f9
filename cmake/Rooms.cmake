# tessera_room(NAME [DEPENDS rooms...] [LINK targets...]): the static library tessera_NAME from src/NAME/**.cc
# (main.cc excluded), with public headers include/tessera/NAME and private headers src/NAME, both included by full path:
#   #include "tessera/NAME/x.h"   #include "NAME/y.h"
# fmt is the system's: torch's include folder carries another version of its headers, so the system's come first, through a folder
# that holds nothing else. Header-only, fmt takes three seconds of every source's compile time.
# Every room but base, formats, config, families, hub, text, chat, terminal, launch, estimate, report and cli links libtorch (and, through it, needs no more than ATen's slim headers).
# tessera_batches(OUT NAME ROOT sources...): sets OUT to files that include TESSERA_BATCH of the sources each, by their paths below
# ROOT (an include folder). Most of a source's compile time is its headers' and their templates'; so these share them. CMake's own
# unity builds write absolute paths, which keeps ccache from knowing the same sources in another checkout. Highway's sources
# read themselves again for each instruction set, and stay alone.
set(TESSERA_BATCH 32 CACHE STRING "sources compiled as one: fewer, and an edited one is compiled sooner, all of them later")
function(tessera_batches out name root)
  set(result)
  set(batch)
  set(count 0)
  foreach(source ${ARGN})
    file(STRINGS ${source} highway REGEX "hwy/foreach_target.h" LIMIT_COUNT 1)
    if(highway)
      list(APPEND result ${source})
      continue()
    endif()
    file(RELATIVE_PATH path ${root} ${source})
    string(APPEND batch "#include \"${path}\"\n")
    math(EXPR count "${count} + 1")
    math(EXPR full "${count} % ${TESSERA_BATCH}")
    if(full EQUAL 0)
      list(APPEND result "${PROJECT_BINARY_DIR}/batches/${name}_${count}.cc")
      file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/batches/${name}_${count}.cc" CONTENT "${batch}" @ONLY)
      set(batch)
    endif()
  endforeach()
  if(batch)
    list(APPEND result "${PROJECT_BINARY_DIR}/batches/${name}_rest.cc")
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/batches/${name}_rest.cc" CONTENT "${batch}" @ONLY)
  endif()
  set(${out} ${result} PARENT_SCOPE)
endfunction()

set(rooms_without_torch "^(base|formats|config|families|hub|text|chat|terminal|launch|estimate|report|cli)$")
get_target_property(fmt_headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/fmt")
file(CREATE_LINK "${fmt_headers}/fmt" "${PROJECT_BINARY_DIR}/fmt/fmt" SYMBOLIC)
# torch/nn/module.h in half the time, but for comm, where c10d's headers call operations. Users read the real files.
function(tessera_slim_torch target)
  target_include_directories(${target} SYSTEM BEFORE PRIVATE "${PROJECT_SOURCE_DIR}/cmake/slim_torch")
  target_compile_definitions(${target} PRIVATE AT_PER_OPERATOR_HEADERS)
endfunction()
tessera_precompiled(rooms_precompiled STATIC LINK tessera::libtorch PkgConfig::HWY HEADERS ${tessera_torch_headers})
tessera_slim_torch(rooms_precompiled)
tessera_precompiled(plain_rooms_precompiled STATIC HEADERS ${tessera_plain_headers})
# Rooms that steer and leave computing to others: a quarter less time to compile at -O1 (a batch of tasks), while the instructions of a
# step stay within the 2% of tests/instructions; half the time at -O0 under sanitizers, where the others need -O1 to be quick enough.
set(rooms_that_steer "^(config|families|hub|launch|estimate|report|cli|peft|checkpoint|train|preference|tasks|verify)$")
set(steering "$<$<CONFIG:Release>:-O1>$<$<CONFIG:Debug>:-O0>")
tessera_precompiled(steering_rooms_precompiled STATIC LINK tessera::libtorch PkgConfig::HWY HEADERS ${tessera_torch_headers})
tessera_slim_torch(steering_rooms_precompiled)
tessera_precompiled(plain_steering_rooms_precompiled STATIC HEADERS ${tessera_plain_headers})
foreach(headers steering_rooms_precompiled plain_steering_rooms_precompiled)
  target_compile_options(${headers} PRIVATE ${steering})
endforeach()
# Of the rooms that steer, those that fuzzers run millions of times.
set(rooms_for_fuzzers "^(config|families|launch)$")
function(tessera_room name)
  cmake_parse_arguments(ROOM "" "" "DEPENDS;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${name}/*.cc")
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$|/data/parquet/")  # programs, and what cmake/Parquet.cmake adds
  if(sources)
    tessera_batches(sources ${name} "${PROJECT_SOURCE_DIR}/src" ${sources})
    add_library(tessera_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(tessera_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(tessera_${name} ${scope} "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
                             "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>" $<INSTALL_INTERFACE:include>)
  target_include_directories(tessera_${name} SYSTEM BEFORE ${scope} "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/fmt>")
  list(TRANSFORM ROOM_DEPENDS PREPEND "tessera_")
  target_link_libraries(tessera_${name} ${scope} ${ROOM_DEPENDS} ${ROOM_LINK} ${tessera_fmt} ${tessera_spdlog}
                        nlohmann_json::nlohmann_json Threads::Threads)
  if(NOT name MATCHES "${rooms_without_torch}")
    # Installed, the package's config file looks for libtorch again, where the user has it.
    target_link_libraries(tessera_${name} ${scope} $<BUILD_INTERFACE:tessera::libtorch>
                          $<INSTALL_INTERFACE:tessera::installed_libtorch>)
    if(sources AND NOT name STREQUAL "comm")
      tessera_slim_torch(tessera_${name})
    endif()
  endif()
  # Not in rooms that have Highway's kernels, compiler options or headers of their own: with precompiled headers g++ 12 contracted
  # products in src/optim/update.cc in spite of its -ffp-contract=off.
  if(sources AND NOT name MATCHES "^(comm|tensor|io|quant|optim|nn)$")
    set(headers rooms_precompiled)
    if(name MATCHES "${rooms_that_steer}")
      string(PREPEND headers steering_)
      target_compile_options(tessera_${name} PRIVATE ${steering})
    endif()
    if(name MATCHES "${rooms_without_torch}")
      string(PREPEND headers plain_)
    endif()
    target_precompile_headers(tessera_${name} REUSE_FROM ${headers})
  endif()
  if(sources AND TESSERA_FUZZ AND name MATCHES "${rooms_for_fuzzers}")
    target_compile_options(tessera_${name} PRIVATE -O1)
  endif()
endfunction()
