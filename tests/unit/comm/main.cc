#include <gtest/gtest.h>

#include "unit/comm/processes.h"

int main(int argc, char** argv) {
  const int status = tessera::comm::testing::run_as_rank();
  if (status >= 0) return status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
