#include "comm/group/arguments.h"

#include <fmt/format.h>

namespace tessera::comm {

void Arguments::reject(Op op, const std::string& message) const {
  const int self = group.name(group.rank());
  throw CommError(fmt::format("rank {}: {}: {}", self, op_name(op), message), self, op_name(op),
                  static_cast<std::int64_t>(sequence));
}

void Arguments::check_root(Op op, int root) const {
  if (root < 0 || root >= size) reject(op, fmt::format("rank {} is not in a group of {}", root, size));
}

void Arguments::check_vector(Op op, const char* name, const at::Tensor& t) const {
  if (!t.defined()) reject(op, fmt::format("{} is undefined", name));
  if (!t.device().is_cpu() || t.dim() != 1 || !t.is_contiguous()) {
    reject(op, fmt::format("{} must be a 1-D contiguous CPU tensor, it is {}-D, {} and on {}", name, t.dim(),
                           t.is_contiguous() ? "contiguous" : "not contiguous", t.device().str()));
  }
}

void Arguments::check_sum(Op op, const at::Tensor& out, c10::ScalarType in, const ReduceOptions& options) const {
  check_vector(op, "out", out);
  if (!can_reduce(in, out.scalar_type())) {
    reject(op, fmt::format("no sum of {} into {}: floating types may differ, integers not, others have none",
                           c10::toString(in), c10::toString(out.scalar_type())));
  }
  if (!c10::isFloatingType(in) && (options.scale != 1.0 || options.accumulate)) {
    reject(op, "scale and accumulate need a floating dtype");
  }
}

void Arguments::check_all_gather(const at::Tensor& out, const at::Tensor& in) const {
  check_vector(Op::kAllGather, "in", in);
  check_vector(Op::kAllGather, "out", out);
  if (out.scalar_type() == in.scalar_type() && out.numel() == size * in.numel()) return;
  reject(Op::kAllGather, fmt::format("out must be [{} x {}] of {}, it is [{}] of {}", size, in.numel(),
                                     c10::toString(in.scalar_type()), out.numel(), c10::toString(out.scalar_type())));
}

void Arguments::check_reduce_scatter(const at::Tensor& out, const at::Tensor& in, const ReduceOptions& options) const {
  check_vector(Op::kReduceScatter, "in", in);
  check_sum(Op::kReduceScatter, out, in.scalar_type(), options);
  if (in.numel() == size * out.numel()) return;
  reject(Op::kReduceScatter, fmt::format("in must have {} x {} elements, it has {}", size, out.numel(), in.numel()));
}

void Arguments::check_all_reduce(const at::Tensor& t) const {
  check_vector(Op::kAllReduce, "the tensor", t);
  if (can_reduce(t.scalar_type(), t.scalar_type())) return;
  reject(Op::kAllReduce, fmt::format("{} cannot be reduced", c10::toString(t.scalar_type())));
}

void Arguments::check_broadcast(const at::Tensor& t, int src) const {
  check_root(Op::kBroadcast, src);
  check_vector(Op::kBroadcast, "the tensor", t);
}

void Arguments::check_scatter(const std::vector<Bytes>& objects, int rank, int src) const {
  check_root(Op::kScatter, src);
  if (rank != src || objects.size() == static_cast<std::size_t>(size)) return;
  reject(Op::kScatter, fmt::format("needs one object for each of {} ranks, got {}", size, objects.size()));
}

}  // namespace tessera::comm
