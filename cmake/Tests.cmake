# One GoogleTest program for each folder of tests: unit/<room> -> test_unit_<room>, process -> test_process, ...
# Each program is one ctest test, so libtorch is loaded once per program, not once per case.
find_package(GTest REQUIRED)
add_library(test_fake_device STATIC "${PROJECT_SOURCE_DIR}/tests/support/fake_device.cc" "${PROJECT_SOURCE_DIR}/tests/support/fake_streams.cc" "${PROJECT_SOURCE_DIR}/tests/support/host_kernels.cc")
add_library(test_fake_nccl STATIC "${PROJECT_SOURCE_DIR}/tests/support/fake_nccl.cc")
target_include_directories(test_fake_nccl PRIVATE "${PROJECT_SOURCE_DIR}/tests")
target_link_libraries(test_fake_nccl PRIVATE tessera_comm test_fake_device)
set_source_files_properties("${PROJECT_SOURCE_DIR}/tests/support/host_kernels.cc" PROPERTIES COMPILE_OPTIONS -ffp-contract=off)  # the kernels' bits
target_include_directories(test_fake_device PRIVATE "${PROJECT_SOURCE_DIR}/tests")
target_link_libraries(test_fake_device PRIVATE tessera_tensor)
# Tests that compute much are optimised, others compile longer than they run. Not by the source: a program takes inline
# functions from any of its objects.
tessera_precompiled(tests_precompiled EXECUTABLE
  LINK tessera::libtorch PkgConfig::HWY GTest::gtest HEADERS ${tessera_torch_headers} <gtest/gtest.h>)
tessera_precompiled(plain_tests_precompiled EXECUTABLE LINK GTest::gtest HEADERS ${tessera_plain_headers} <gtest/gtest.h>)
foreach(headers tests_precompiled plain_tests_precompiled)
  target_compile_options(${headers} PRIVATE -O0)
endforeach()
function(tessera_tests name folder)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${folder}/*.cc")
  if(NOT sources)
    return()
  endif()
  tessera_batches(sources test_${name} "${PROJECT_SOURCE_DIR}/tests" ${sources})
  add_executable(test_${name} ${sources})
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(test_${name} PRIVATE ${ARGN} GTest::gtest GTest::gtest_main)
  if(name MATCHES "^(unit_(tensor|optim|nn|models|fsdp|checkpoint|train|verify)|golden)$")
    target_link_libraries(test_${name} PRIVATE test_fake_device)
  endif()
  if(name STREQUAL "unit_fsdp")
    target_link_libraries(test_${name} PRIVATE test_fake_nccl)
  endif()
  target_compile_definitions(test_${name} PRIVATE
    TESSERA_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" TESSERA_BINARY="$<TARGET_FILE:tessera>")
  if(TESSERA_SANITIZE MATCHES "address")  # g++ has a macro of its own for it, clang 19 has not
    target_compile_definitions(test_${name} PRIVATE TESSERA_ADDRESS_SANITIZER)
  endif()
  if(TESSERA_SANITIZE MATCHES "thread")
    target_sources(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/thread_sanitizer.cc")
  endif()
  if(NOT name MATCHES "^(unit_(comm|text|chat|quant)|kernels)$")
    target_compile_options(test_${name} PRIVATE -O0)
    string(REPLACE "unit_" "" room ${name})
    if(name MATCHES "^unit_" AND room MATCHES "${rooms_without_torch}")
      target_precompile_headers(test_${name} REUSE_FROM plain_tests_precompiled)
    else()
      target_precompile_headers(test_${name} REUSE_FROM tests_precompiled)
    endif()
  endif()
  add_test(NAME ${name} COMMAND test_${name})
  set(threads 2)
  if(name MATCHES "^(unit_(fsdp|train|tasks|worker|verify|checkpoint)|process|cli)$")  # many ranks on few cores
    set(threads 1)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT 900
    ENVIRONMENT "OMP_NUM_THREADS=${threads};OMP_WAIT_POLICY=PASSIVE;HF_HUB_OFFLINE=1")  # no test asks the real Hub
endfunction()

foreach(room base formats tensor config families hub comm io text chat terminal data optim nn quant models peft fsdp checkpoint report launch estimate train tasks verify cli worker)
  tessera_tests(unit_${room} unit/${room} tessera_${room})
endforeach()
tessera_tests(unit_preference unit/preference tessera_tasks)
tessera_tests(kernels kernels tessera_nn tessera_quant)
tessera_tests(golden golden tessera_worker)
tessera_tests(process process tessera_worker)
tessera_tests(cli cli tessera_worker)
# These start the programs hundreds of times (support/loaded_programs.h). Sanitizers look at a process's end, which such starts cut short.
if(NOT TESSERA_SANITIZE)
  foreach(t process golden)
    target_sources(test_${t} PRIVATE "${PROJECT_SOURCE_DIR}/tests/support/loaded_programs.cc")
    target_compile_definitions(test_${t} PRIVATE TESSERA_HOLDS_PROGRAMS)
  endforeach()
endif()
# tessera_part(NAME PROGRAM FILTER): a program's tests that FILTER names run as a test of their own, beside the others; ranks share
# the cores, and only a process without threads can be copied.
function(tessera_part name program filter)
  get_test_property(${program} ENVIRONMENT environment)
  list(FILTER environment EXCLUDE REGEX "GTEST_FILTER")
  list(TRANSFORM environment REPLACE "OMP_NUM_THREADS=.*" "OMP_NUM_THREADS=1" OUTPUT_VARIABLE of_part)
  add_test(NAME ${name} COMMAND test_${program} "--gtest_filter=${filter}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 2400 ENVIRONMENT "${of_part}")
  list(APPEND ${program}_parts "${filter}")
  set(${program}_parts "${${program}_parts}" PARENT_SCOPE)
  list(JOIN ${program}_parts ":" filters)
  set_tests_properties(${program} PROPERTIES ENVIRONMENT "${environment};GTEST_FILTER=-${filters}")
endfunction()
tessera_part(chaos process "*Chaos*")  # kills and restarts wait more than they compute
tessera_part(process_memory process "Machines.*:MemoryByProc.*:LargeData.*")
tessera_part(golden_folders golden "*FoldersGolden*")
tessera_part(unit_tasks_matrix unit_tasks "*MethodMatrix*")
# Those that take longest start first.
set_tests_properties(process PROPERTIES TIMEOUT 2400 COST 1000)
set_tests_properties(chaos PROPERTIES COST 970)
set_tests_properties(process_memory PROPERTIES COST 960)
set_tests_properties(golden golden_folders PROPERTIES TIMEOUT 1800 COST 950)  # TESSERA_GOLDENS may name a larger set
set_tests_properties(unit_tasks unit_tasks_matrix PROPERTIES TIMEOUT 1800 COST 980)
set_tests_properties(unit_comm PROPERTIES COST 960)
set_tests_properties(unit_fsdp PROPERTIES COST 940)
foreach(t process cli golden)  # these start the program itself
  if(TARGET test_${t})
    add_dependencies(test_${t} tessera)
  endif()
endforeach()

# The same at every level of instructions that a user's processor may have (base/cpu_level.h).
function(tessera_test_at_level level name)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64")
    add_test(NAME ${name}_${level} COMMAND "${PROJECT_SOURCE_DIR}/tests/kernels/at_level.sh" ${level} ${ARGN})
    set_tests_properties(${name}_${level} PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77
      ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=PASSIVE")
  endif()
endfunction()
function(tessera_tests_at_levels name)
  foreach(level plain avx2 avx512 avx512_bf16 amx)
    tessera_test_at_level(${level} ${name} ${ARGN})
  endforeach()
endfunction()
tessera_tests_at_levels(kernels $<TARGET_FILE:test_kernels>)
tessera_tests_at_levels(unit_nn $<TARGET_FILE:test_unit_nn>)
foreach(level plain avx2 avx512)  # the same bits at each
  tessera_test_at_level(${level} unit_optim $<TARGET_FILE:test_unit_optim>)
endforeach()
# Not int8 on the made-up device, which multiplies by a libtorch that may not (quant/int8_codec.cc).
tessera_tests_at_levels(codecs $<TARGET_FILE:test_unit_models>
  --gtest_filter=*Codec*:Int8.*-Int8Codec.InferenceOnAnotherDevice*)
tessera_tests_at_levels(gguf $<TARGET_FILE:test_unit_io> --gtest_filter=Gguf.*:GgufEncode.*)
# Where products of float32 are a library's and take no memory of their own.
tessera_test_at_level(plain method_memory $<TARGET_FILE:test_unit_tasks> --gtest_filter=*MethodMemory*)
set_tests_properties(method_memory_plain PROPERTIES COST 900)
# Through the whole program: outputs and gradients of the reference stack, and a training run.
tessera_tests_at_levels(verify "${PROJECT_SOURCE_DIR}/tests/kernels/verify_folders.sh" $<TARGET_FILE:tessera>
  "${PROJECT_SOURCE_DIR}/tests/data/goldens" A_models/gpt2 A_models/bert_mlm A_models/gemma2 A_models/t5_v1_1 B_train/llama_dora)

# The script for machines with a GPU, without one.
add_test(NAME gpu_dry COMMAND "${PROJECT_SOURCE_DIR}/tests/gpu/dry.sh" "${PROJECT_BINARY_DIR}")
set_tests_properties(gpu_dry PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 ENVIRONMENT "OMP_NUM_THREADS=2;OMP_WAIT_POLICY=PASSIVE")

# Instructions of a step, counted by valgrind (skipped without it) and held against recorded numbers. They are those of the
# optimised build.
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT TESSERA_SANITIZE)
  add_executable(counted_steps "${PROJECT_SOURCE_DIR}/tests/instructions/counted_steps.cc")
  target_link_libraries(counted_steps PRIVATE tessera_tasks)
  target_include_directories(counted_steps PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  add_test(NAME instructions COMMAND "${PROJECT_SOURCE_DIR}/tests/instructions/count.sh" $<TARGET_FILE:counted_steps>
    "${PROJECT_SOURCE_DIR}/tests/data/fsdp_runs" "${PROJECT_SOURCE_DIR}/tests/instructions/recorded.txt")
  set_tests_properties(instructions PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 COST 900)
endif()
