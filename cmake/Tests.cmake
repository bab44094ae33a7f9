# One GoogleTest program for each folder of tests: unit/<room> -> test_unit_<room>, distributed -> test_distributed, ...
# Each program is one ctest test, so libtorch is loaded once per program, not once per case.
find_package(GTest REQUIRED)
function(tessera_tests name folder)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${folder}/*.cc")
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  target_include_directories(test_${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(test_${name} PRIVATE ${ARGN} GTest::gtest GTest::gtest_main)
  target_compile_definitions(test_${name} PRIVATE
    TESSERA_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" TESSERA_BINARY="$<TARGET_FILE:tessera>")
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 ENVIRONMENT "OMP_NUM_THREADS=2")
endfunction()

foreach(room base tensor config comm io text chat data optim nn models peft fsdp checkpoint report launch train tasks cli worker)
  tessera_tests(unit_${room} unit/${room} tessera_${room})
endforeach()
tessera_tests(distributed distributed tessera_tasks)
tessera_tests(golden golden tessera_tasks)
tessera_tests(process process tessera_worker)
tessera_tests(cli cli tessera_worker)
foreach(t process cli)  # these start the program itself
  if(TARGET test_${t})
    add_dependencies(test_${t} tessera)
  endif()
endforeach()
