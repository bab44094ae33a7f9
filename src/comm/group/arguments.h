#pragma once
// What the operations of every backend ask of their arguments, and what ranks say about them when they start one.
#include <ATen/core/Tensor.h>

#include "comm/group/group.h"
#include "comm/group/rounds.h"

namespace tessera::comm {

/// Checks throw CommError: nothing has been started then.
struct Arguments {
  const Group& group;
  int size;                // ranks that take part; more than `group` has where others are on other hosts
  std::uint64_t sequence;  // that the operation would have

  [[noreturn]] void reject(Op op, const std::string& message) const;

  void check_root(Op op, int root) const;
  void check_vector(Op op, const char* name, const at::Tensor& t) const;
  void check_sum(Op op, const at::Tensor& out, c10::ScalarType in, const ReduceOptions& options) const;
  void check_all_gather(const at::Tensor& out, const at::Tensor& in) const;
  void check_reduce_scatter(const at::Tensor& out, const at::Tensor& in, const ReduceOptions& options) const;
  void check_all_reduce(const at::Tensor& t) const;
  void check_broadcast(const at::Tensor& t, int src) const;
  void check_scatter(const std::vector<Bytes>& objects, int rank, int src) const;
};

inline Announcement tensor_announcement(Op op, const at::Tensor& t, int detail = 0) {
  return {op, static_cast<std::int32_t>(t.scalar_type()), detail, 0, t.numel(), 0};
}
inline Announcement object_announcement(Op op, int detail, std::size_t bytes) {
  return {op, -1, detail, 0, 0, static_cast<std::int64_t>(bytes)};
}

inline std::byte* bytes_of(const at::Tensor& t) {
  return static_cast<std::byte*>(t.data_ptr());
}
inline Elements elements_of(const at::Tensor& t) {
  return {t.data_ptr(), t.scalar_type()};
}
inline const std::byte* bytes_of(const Bytes& object) {
  return reinterpret_cast<const std::byte*>(object.data());
}
inline std::byte* bytes_of(Bytes& object) {
  return reinterpret_cast<std::byte*>(object.data());
}

}  // namespace tessera::comm
