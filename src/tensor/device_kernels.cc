#include "tensor/device_kernels.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <string>

#include "base/env.h"
#include "base/log.h"
#include "tessera/base/error.h"

namespace tessera::tensor {
namespace {

std::array<std::atomic<const DeviceKernels*>, static_cast<std::size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)> in_use;

std::vector<std::string> places() {
  constexpr const char* kName = "libtessera_cuda.so";
  if (const auto named = environment("TESSERA_DEVICE_KERNELS"))
    return *named == "none" ? std::vector<std::string>{} : std::vector{*named};
  std::error_code code;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", code).parent_path();
  return {folder / kName, folder.parent_path() / "lib" / kName, kName};
}

const DeviceKernels* load() {
  const auto files = places();
  std::string reason;
  for (const auto& file : files) {
    void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* why = ::dlerror();
      reason = why == nullptr ? "" : why;
      continue;
    }
    const auto entry = reinterpret_cast<DeviceKernelsEntry>(::dlsym(library, kDeviceKernelsEntry));
    const auto* kernels = entry == nullptr ? nullptr : entry();
    if (kernels == nullptr || kernels->version != kDeviceKernelsVersion)
      throw ConfigError(file + ": expected kernels of version " + std::to_string(kDeviceKernelsVersion) + ", found " +
                            (kernels == nullptr ? "none" : "version " + std::to_string(kernels->version)) +
                            "; it must come from the same build as this program",
                        "TESSERA_DEVICE_KERNELS");
    std::int32_t capability = 0;
    if (const int code = kernels->capability(&capability); code != 0)
      throw ConfigError(file + " does not run on this GPU (compute capability " + std::to_string(capability) +
                            "): " + kernels->error_text(code) +
                            "; build it for this GPU, or set TESSERA_DEVICE_KERNELS=none to do without",
                        "TESSERA_DEVICE_KERNELS");
    return kernels;
  }
  if (environment("TESSERA_DEVICE_KERNELS") && !files.empty())
    throw ConfigError("the kernels for GPUs cannot be loaded: " + reason, "TESSERA_DEVICE_KERNELS");
  if (!files.empty())
    log_warning("no kernels for GPUs (" + reason +
                "); libtorch's operators compute instead, which takes more time and memory. They are built where nvcc "
                "is: libtessera_cuda.so");
  return nullptr;
}

}  // namespace

const DeviceKernels* device_kernels(const at::Tensor& t) {
  if (t.is_cuda()) {
    static std::once_flag once;
    std::call_once(once, [&] {
      const c10::OptionalDeviceGuard guard(t.device());
      if (const auto* found = load()) use_device_kernels(c10::DeviceType::CUDA, found);
    });
  }
  return in_use[static_cast<std::size_t>(t.device().type())].load(std::memory_order_acquire);
}

int compute_capability(const at::Tensor& t) {
  const auto* kernels = device_kernels(t);
  if (kernels == nullptr) return 0;
  thread_local c10::Device known(c10::DeviceType::CPU);
  thread_local std::int32_t value = 0;
  if (known != t.device()) {
    const c10::OptionalDeviceGuard guard(t.device());
    check_launch(*kernels, kernels->capability(&value), "capability");
    known = t.device();
  }
  return value;
}

void use_device_kernels(c10::DeviceType type, const DeviceKernels* kernels) {
  in_use[static_cast<std::size_t>(type)].store(kernels, std::memory_order_release);
}

bool has_device_kernels(const at::Tensor& t) {
  const auto dtype = t.scalar_type();
  return !t.is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) &&
         device_kernels(t) != nullptr;
}

DeviceDtype device_dtype(at::ScalarType dtype) {
  TESSERA_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, "kernels know three dtypes");
  return dtype == at::kFloat ? kDeviceFloat : dtype == at::kBFloat16 ? kDeviceBFloat16 : kDeviceHalf;
}

void check_launch(const DeviceKernels& kernels, int code, const char* name) {
  if (code != 0) throw Error(std::string("kernel '") + name + "': " + kernels.error_text(code));
}

void* current_stream(const at::Tensor& t) {
  if (t.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device()).native_handle();
}

}  // namespace tessera::tensor
