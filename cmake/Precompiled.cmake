# Headers that most sources read, compiled once: a batch of sources (Rooms.cmake) on libtorch would read them for ten seconds,
# any other for four. CMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without.
#
# tessera_precompiled(NAME STATIC|EXECUTABLE [LINK targets...] [HEADERS headers...]): what targets with the same options take by
#   target_precompile_headers(TARGET REUSE_FROM NAME)
# LINK: what defines macros that HEADERS look at. Where a target defines such a macro differently, the compiler warns (invalid-pch)
# and reads all these headers as text, which is slower than building without.
set(tessera_plain_headers <algorithm> <filesystem> <functional> <map> <optional> <string> <vector> <fmt/format.h> <fmt/ranges.h>
    <nlohmann/json.hpp>)
set(tessera_torch_headers <torch/csrc/autograd/custom_function.h> <torch/nn/module.h> <fmt/format.h> <fmt/ranges.h>
    <nlohmann/json.hpp>)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/batches/empty_main.cc" CONTENT "int main() {}\n" @ONLY)

# Position-independent code for libraries is not that for programs.
function(tessera_precompiled name kind)
  cmake_parse_arguments(PRE "" "" "LINK;HEADERS" ${ARGN})
  if(kind STREQUAL "STATIC")
    add_library(${name} STATIC EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/batches/empty_main.cc")
  else()
    add_executable(${name} EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/batches/empty_main.cc")
  endif()
  target_include_directories(${name} SYSTEM BEFORE PRIVATE "${PROJECT_BINARY_DIR}/fmt")
  target_link_libraries(${name} PRIVATE ${tessera_fmt} nlohmann_json::nlohmann_json ${PRE_LINK})
  target_precompile_headers(${name} PRIVATE ${PRE_HEADERS})
endfunction()
