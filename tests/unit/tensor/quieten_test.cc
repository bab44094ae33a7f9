#include "tensor/quieten.h"

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace tessera::tensor {
namespace {

std::string what_a_warning_prints() {
  testing::internal::CaptureStderr();
  TORCH_WARN("careful");
  LOG(WARNING) << "careful";
  return testing::internal::GetCapturedStderr();
}

class QuietenLibtorch : public testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("TORCH_CPP_LOG_LEVEL");
    FLAGS_caffe2_log_level = before_;
  }
  int before_ = FLAGS_caffe2_log_level;
};

TEST_F(QuietenLibtorch, WarningsAreNotPrinted) {
  ::unsetenv("TORCH_CPP_LOG_LEVEL");
  EXPECT_NE(what_a_warning_prints(), "");
  quieten_libtorch();
  EXPECT_EQ(what_a_warning_prints(), "");
}

TEST_F(QuietenLibtorch, TheEnvironmentDecides) {
  ::setenv("TORCH_CPP_LOG_LEVEL", "WARNING", 1);
  quieten_libtorch();
  EXPECT_NE(what_a_warning_prints(), "");
}

}  // namespace
}  // namespace tessera::tensor
