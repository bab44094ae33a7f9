#pragma once
// The part of NCCL's C API that is used (nccl.h of version 2), as a table: the library is loaded when the first group
// of GPUs needs it, and tests put their own table in its place. NCCL comes with libtorch's CUDA build.
#include <cstddef>
#include <cstdint>

namespace tessera::comm {

struct NcclUniqueId {
  char bytes[128];
};
using NcclComm = void*;
using NcclStream = void*;  // cudaStream_t

enum NcclDtype : int {
  kNcclUint8 = 1,
  kNcclInt32 = 2,
  kNcclInt64 = 4,
  kNcclHalf = 6,
  kNcclFloat = 7,
  kNcclDouble = 8,
  kNcclBFloat16 = 9
};
enum NcclOp : int { kNcclSum = 0, kNcclMax = 2, kNcclMin = 3 };
constexpr int kNcclSuccess = 0, kNcclInProgress = 7;

/// Every function returns one of NCCL's results; 0 is success.
struct NcclApi {
  int (*get_version)(int* version);  // 22809: 2.28.9
  int (*get_unique_id)(NcclUniqueId* id);
  int (*comm_init_rank)(NcclComm* comm, int ranks, NcclUniqueId id, int rank);
  int (*comm_destroy)(NcclComm comm);
  int (*comm_abort)(NcclComm comm);
  int (*comm_get_async_error)(NcclComm comm, int* error);
  const char* (*get_error_string)(int result);
  const char* (*get_last_error)(NcclComm comm);
  int (*all_gather)(const void* in, void* out, std::size_t count, int dtype, NcclComm comm, NcclStream stream);
  int (*all_reduce)(const void* in, void* out, std::size_t count, int dtype, int op, NcclComm comm, NcclStream stream);
  int (*broadcast)(const void* in, void* out, std::size_t count, int dtype, int root, NcclComm comm, NcclStream stream);
  int (*send)(const void* in, std::size_t count, int dtype, int peer, NcclComm comm, NcclStream stream);
  int (*recv)(void* out, std::size_t count, int dtype, int peer, NcclComm comm, NcclStream stream);
  int (*group_start)();
  int (*group_end)();
};

/// The library's, loaded once. ConfigError where there is none, or it is older than 2.18.
const NcclApi& nccl();
/// From now on this one (null: the library's again).
void use_nccl(const NcclApi* api);

}  // namespace tessera::comm
