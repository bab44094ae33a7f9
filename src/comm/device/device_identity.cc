#include "comm/device/device_identity.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <utility>

#include "comm/rendezvous/own_host.h"

namespace tessera::comm {
namespace {

using Uuid = std::array<std::uint8_t, 16>;

std::function<std::string(at::Device)> told_instead;

/// NVIDIA's driver, which libtorch has loaded and begun with. Its numbers of GPUs are those of libtorch.
bool read_uuid(int gpu, Uuid& uuid) {
  static void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return false;
  const auto get = reinterpret_cast<int (*)(int*, int)>(::dlsym(driver, "cuDeviceGet"));
  const auto get_uuid = reinterpret_cast<int (*)(Uuid*, int)>(::dlsym(driver, "cuDeviceGetUuid_v2"));
  int device = 0;
  return get != nullptr && get_uuid != nullptr && get(&device, gpu) == 0 && get_uuid(&uuid, device) == 0;
}

}  // namespace

std::string device_identity(at::Device device) {
  if (told_instead) return told_instead(device);
  Uuid uuid{};
  if (!device.is_cuda() || !read_uuid(device.index(), uuid)) return device.str();
  std::string text;
  for (std::size_t i = 0; i < uuid.size(); ++i)
    text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
  return text;
}

void use_device_identity(std::function<std::string(at::Device)> identity) {
  told_instead = std::move(identity);
}

SharedDevice find_shared_device(Communicator& group, at::Device device) {
  const auto all = group.all_gather_objects(device.is_cpu() ? "" : own_host() + " " + device_identity(device));
  for (std::size_t first = 0; first < all.size(); ++first) {
    SharedDevice shared{all[first].substr(all[first].rfind(' ') + 1), {}};
    for (std::size_t r = first; r < all.size(); ++r)
      if (!all[r].empty() && all[r] == all[first]) shared.ranks.push_back(static_cast<int>(r));
    if (shared.ranks.size() > 1) return shared;
  }
  return {};
}

}  // namespace tessera::comm
