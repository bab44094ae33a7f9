#include "comm/device/nccl.h"

#include <dlfcn.h>

#include <atomic>
#include <string>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr int kOldest = 21800;
std::atomic<const NcclApi*> in_place = nullptr;

NcclApi load() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw ConfigError(
        "NCCL cannot be loaded (" + std::string(why == nullptr ? "unknown reason" : why) +
            "), and several GPUs need it: it comes with libtorch's CUDA build (nvidia-nccl-cu13); put its "
            "folder into LD_LIBRARY_PATH, or set fsdp_offload_params: true",
        "nccl");
  }
  NcclApi api{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr)
      throw ConfigError(std::string("libnccl.so.2 has no function ") + name + "; expected NCCL 2.18 or newer", "nccl");
  };
  find(api.get_version, "ncclGetVersion");
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.comm_init_rank, "ncclCommInitRank");
  find(api.comm_destroy, "ncclCommDestroy");
  find(api.comm_abort, "ncclCommAbort");
  find(api.comm_get_async_error, "ncclCommGetAsyncError");
  find(api.get_error_string, "ncclGetErrorString");
  find(api.get_last_error, "ncclGetLastError");
  find(api.all_gather, "ncclAllGather");
  find(api.all_reduce, "ncclAllReduce");
  find(api.broadcast, "ncclBroadcast");
  find(api.send, "ncclSend");
  find(api.recv, "ncclRecv");
  find(api.group_start, "ncclGroupStart");
  find(api.group_end, "ncclGroupEnd");
  int version = 0;
  if (api.get_version(&version) != kNcclSuccess || version < kOldest)
    throw ConfigError("libnccl.so.2 is NCCL " + std::to_string(version) + "; expected 2.18 (" +
                          std::to_string(kOldest) + ") or newer",
                      "nccl");
  return api;
}

}  // namespace

const NcclApi& nccl() {
  if (const auto* api = in_place.load()) return *api;
  static const NcclApi library = load();
  return library;
}

void use_nccl(const NcclApi* api) {
  in_place = api;
}

}  // namespace tessera::comm
