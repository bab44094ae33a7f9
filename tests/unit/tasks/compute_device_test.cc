// --device cuda, on a machine that lacks something for it.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include "tasks/fsdp_options.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

std::string refusal(const config::AccelerateConfig& config) {
  try {
    compute_device("cuda", config);
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.key, "device");
    return e.what();
  }
  return "none";
}

TEST(ComputeDevice, IsTheCpuUnlessCudaIsAskedFor) {
  for (const char* device : {"auto", "cpu"}) EXPECT_TRUE(compute_device(device, {}).is_cpu());
}

TEST(ComputeDevice, NamesWhatCudaLacks) {
  config::AccelerateConfig config;
  EXPECT_NE(refusal(config).find("set fsdp_offload_params: true"), std::string::npos) << refusal(config);
  config.fsdp.offload_params = true;
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
    EXPECT_NE(refusal(config).find("built without CUDA"), std::string::npos) << refusal(config);
  }
  config.use_cpu = true;
  EXPECT_NE(refusal(config).find("use_cpu: true"), std::string::npos) << refusal(config);
}

}  // namespace
}  // namespace tessera::tasks
