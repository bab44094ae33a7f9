# tessera_precompile(TARGET KIND [options...]): TARGET's sources begin with headers that are compiled once for all targets
# of KIND, which share their compile options. Only with TESSERA_PRECOMPILE. torch/nn/module.h, which every module and
# whatever is sharded needs, is more than half of what a small source takes to compile.
set(tessera_precompiled
  <torch/nn/module.h> <torch/csrc/autograd/custom_function.h> <nlohmann/json.hpp> <fmt/format.h> <algorithm> <functional>
  <map> <memory> <string> <vector>)

function(tessera_precompile target kind)
  if(NOT TESSERA_PRECOMPILE)
    return()
  endif()
  if(NOT TARGET precompiled_${kind})
    set(source "${PROJECT_BINARY_DIR}/batches/precompiled_${kind}.cc")
    file(CONFIGURE OUTPUT "${source}" CONTENT "" @ONLY)
    if(kind MATCHES "tests")
      add_executable(precompiled_${kind} EXCLUDE_FROM_ALL "${source}")  # never linked: compiled as the programs are
      target_link_libraries(precompiled_${kind} PRIVATE GTest::gtest)
      target_precompile_headers(precompiled_${kind} PRIVATE <gtest/gtest.h> <ATen/ATen.h>)
    else()
      add_library(precompiled_${kind} OBJECT EXCLUDE_FROM_ALL "${source}")
    endif()
    target_link_libraries(precompiled_${kind} PRIVATE fmt::fmt-header-only spdlog::spdlog nlohmann_json::nlohmann_json
                          Threads::Threads tessera::libtorch)
    target_compile_options(precompiled_${kind} PRIVATE ${ARGN})
    target_precompile_headers(precompiled_${kind} PRIVATE ${tessera_precompiled})
  endif()
  target_precompile_headers(${target} REUSE_FROM precompiled_${kind})
endfunction()
