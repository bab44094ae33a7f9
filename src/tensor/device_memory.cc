#include "tensor/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace tessera::tensor {
namespace {

std::string without_period(std::string text) {
  if (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace

OutOfDeviceMemory::OutOfDeviceMemory(const std::string& place, const std::string& reason, const std::string& help)
    : what_(place + ": " + without_period(plain_reason(reason)) + ". What helps: " + help) {}

std::optional<std::int64_t> peak_device_bytes(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  auto* counting = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!counting || !counting->initialized()) return std::nullopt;
  return counting->getDeviceStats(device.has_index() ? device.index() : c10::DeviceIndex{0}).allocated_bytes[0].peak;
}

}  // namespace tessera::tensor
