// Which way a sum takes over hosts: see hosts_communicator.h.
#include "comm/hosts/hosts_communicator.h"

namespace tessera::comm {
namespace {

constexpr std::int64_t kSmall = 32 * 1024;  // bytes of all inputs together: latency counts, and nothing else

}  // namespace

std::unique_ptr<Work> HostsCommunicator::all_reduce(at::Tensor t, ReduceOp op) {
  arguments().check_all_reduce(t);
  return submit(tensor_announcement(Op::kAllReduce, t, static_cast<int>(op)), [this, t, op] {
    if (t.numel() == 0) return;
    if (static_cast<std::int64_t>(t.nbytes()) * size() <= kSmall) return all_reduce_small(t, op);
    if (sums_directly(t.scalar_type())) return all_reduce_directly(t, op);
    all_reduce_by_chain(t, op);
  });
}

void HostsCommunicator::all_reduce_small(const at::Tensor& t, ReduceOp op) {
  const auto bytes = static_cast<std::int64_t>(t.nbytes());
  std::byte* all = received_.at_least(bytes * size());
  gather_all(bytes_of(t), all, std::vector(static_cast<std::size_t>(size()), bytes));
  std::vector<const void*> inputs;
  for (int r = 0; r < size(); ++r) inputs.push_back(all + r * bytes);
  reduce_into(t.data_ptr(), t.scalar_type(), inputs, t.scalar_type(), t.numel(), {op});
}

std::unique_ptr<Work> HostsCommunicator::reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions options) {
  arguments().check_reduce_scatter(out, in, options);
  return submit(tensor_announcement(Op::kReduceScatter, in), [this, out, in, options] {
    if (in.numel() == 0) return;
    if (!sums_directly(in.scalar_type())) return reduce_scatter_by_chain(out, in, options);
    std::vector<Slice> slices;
    for (int r = 0; r < size(); ++r) slices.push_back({r * out.numel(), out.numel()});
    sum_directly(elements_of(in), slices, elements_of(out), {ReduceOp::kSum, options.scale, options.accumulate});
  });
}

}  // namespace tessera::comm
