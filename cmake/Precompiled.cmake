# Headers that most sources on libtorch read, compiled once: a batch of sources (Rooms.cmake) would read them for ten
# seconds. CMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without.
#
# tessera_precompiled(NAME INCLUDES... ): what targets with the same options take by
#   target_precompile_headers(TARGET REUSE_FROM NAME)
# The compiler takes them only where macros have the values with which they were made; so only those of libtorch are set.
set(tessera_precompiled_headers <torch/csrc/autograd/custom_function.h> <torch/nn/module.h> <fmt/format.h> <fmt/ranges.h>
    <nlohmann/json.hpp>)
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/batches/empty_main.cc" CONTENT "int main() {}\n" @ONLY)

# Position-independent code for libraries (KIND STATIC) is not that for programs (KIND EXECUTABLE).
function(tessera_precompiled name kind)
  if(kind STREQUAL "STATIC")
    add_library(${name} STATIC EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/batches/empty_main.cc")
  else()
    add_executable(${name} EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/batches/empty_main.cc")
  endif()
  target_include_directories(${name} SYSTEM BEFORE PRIVATE "${PROJECT_BINARY_DIR}/fmt")
  target_link_libraries(${name} PRIVATE tessera::libtorch fmt::fmt nlohmann_json::nlohmann_json PkgConfig::HWY)
  target_precompile_headers(${name} PRIVATE ${tessera_precompiled_headers} ${ARGN})
endfunction()
