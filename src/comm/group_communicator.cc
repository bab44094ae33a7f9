#include "comm/group_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

namespace tessera::comm {
namespace {

enum class PeersRead { kCopies, kMyMemory };

class GroupWork : public Work {
 public:
  GroupWork(std::shared_ptr<GroupCommunicator> communicator, std::uint64_t sequence, PeersRead peers_read)
      : communicator_(std::move(communicator)), sequence_(sequence), peers_read_(peers_read) {
    if (peers_read_ == PeersRead::kMyMemory) ++communicator_->reductions_in_flight;
  }
  GroupWork(const GroupWork&) = delete;
  GroupWork& operator=(const GroupWork&) = delete;

  // While an exception unwinds, peers must not be waited for: leaving the group tells them.
  ~GroupWork() override {
    try {
      if (std::uncaught_exceptions() == exceptions_) wait();
    } catch (...) {  // the communicator throws it again at its next operation
    }
    count_as_waited();
  }

  void wait() override {
    if (!complete_) communicator_->complete(sequence_);
    complete_ = true;
    count_as_waited();
  }

  void wait_input_free() override {
    wait();
    if (peers_read_ == PeersRead::kMyMemory) communicator_->group().await_finished(sequence_);
  }

 private:
  void count_as_waited() {
    if (counted_ && peers_read_ == PeersRead::kMyMemory) --communicator_->reductions_in_flight;
    counted_ = false;
  }

  std::shared_ptr<GroupCommunicator> communicator_;
  std::uint64_t sequence_;
  PeersRead peers_read_;
  bool complete_ = false;
  bool counted_ = true;
  int exceptions_ = std::uncaught_exceptions();
};

Announcement tensor_announcement(Op op, const at::Tensor& t, int detail = 0) {
  return {op, static_cast<std::int32_t>(t.scalar_type()), detail, 0, t.numel(), 0};
}

std::byte* bytes_of(const at::Tensor& t) {
  return static_cast<std::byte*>(t.data_ptr());
}
Elements elements_of(const at::Tensor& t) {
  return {t.data_ptr(), t.scalar_type()};
}

constexpr std::int64_t kSmallBytes = 64 * 1024;  // below, two phases of an all_reduce cost more than they save

std::vector<Slice> equal_slices(std::int64_t n, int size) {
  std::vector<Slice> slices(static_cast<std::size_t>(size));
  const std::int64_t step = ((n + size - 1) / size + 63) / 64 * 64;
  for (std::int64_t r = 0; r < size; ++r) {
    const std::int64_t begin = std::min(n, r * step);
    slices[static_cast<std::size_t>(r)] = {begin, std::min(n, begin + step) - begin};
  }
  return slices;
}

// Reduce one slice, then gather the slices.
void all_reduce_in_slices(Group& group, const at::Tensor& t, const Reduction& reduction) {
  const std::vector<Slice> slices = equal_slices(t.numel(), group.size());
  const auto item = static_cast<std::int64_t>(t.element_size());
  std::byte* data = bytes_of(t);
  std::byte* own = data + slices[static_cast<std::size_t>(group.rank())].begin * item;
  reduce_slices(group, {own, t.scalar_type()}, elements_of(t), slices, reduction);
  std::vector<Flow> flows;
  for (const Slice& slice : slices) flows.push_back(whole(slice.count * item, data + slice.begin * item));
  stream(group, own, flows);
}

}  // namespace

std::uint64_t GroupCommunicator::start(const Announcement& announcement, std::function<void()> run) {
  group_->check_usable();
  const std::uint64_t next = group_->posted();
  if (next >= kRing) complete(next - kRing);
  const std::uint64_t sequence = group_->post(announcement);
  started_.push_back({sequence, std::move(run)});
  return sequence;
}

void GroupCommunicator::complete(std::uint64_t sequence) {
  group_->check_usable();
  while (!started_.empty() && started_.front().sequence <= sequence) {
    running_ = started_.front().sequence;
    group_->meet(running_);
    started_.front().run();
    group_->finish(running_);
    started_.pop_front();
  }
}

void GroupCommunicator::start_and_complete(const Announcement& announcement, std::function<void()> run) {
  complete(start(announcement, std::move(run)));
}

std::unique_ptr<Work> GroupCommunicator::all_gather(at::Tensor out, at::Tensor in) {
  check_vector(Op::kAllGather, "in", in);
  check_vector(Op::kAllGather, "out", out);
  if (out.scalar_type() != in.scalar_type() || out.numel() != size() * in.numel()) {
    group_->reject(Op::kAllGather,
                   fmt::format("out must be [{} x {}] of {}, it is [{}] of {}", size(), in.numel(),
                               c10::toString(in.scalar_type()), out.numel(), c10::toString(out.scalar_type())));
  }
  const Announcement announcement = tensor_announcement(Op::kAllGather, in);
  const auto run = [this, out, in] {
    const auto bytes = static_cast<std::int64_t>(in.nbytes());
    std::vector<Flow> flows;
    for (int r = 0; r < size(); ++r) flows.push_back(whole(bytes, bytes == 0 ? nullptr : bytes_of(out) + r * bytes));
    stream(*group_, bytes == 0 ? nullptr : bytes_of(in), flows);
  };
  return std::make_unique<GroupWork>(shared_from_this(), start(announcement, run), PeersRead::kCopies);
}

std::unique_ptr<Work> GroupCommunicator::reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions options) {
  check_vector(Op::kReduceScatter, "in", in);
  check_sum(Op::kReduceScatter, out, in.scalar_type(), options);
  if (in.numel() != size() * out.numel()) {
    group_->reject(Op::kReduceScatter,
                   fmt::format("in must have {} x {} elements, it has {}", size(), out.numel(), in.numel()));
  }
  const auto run = [this, out, in, options] {
    std::vector<Slice> slices;
    for (int r = 0; r < size(); ++r) slices.push_back({r * out.numel(), out.numel()});
    reduce_slices(*group_, elements_of(out), elements_of(in), slices,
                  {ReduceOp::kSum, options.scale, options.accumulate});
  };
  const auto sequence = start(tensor_announcement(Op::kReduceScatter, in), run);
  return std::make_unique<GroupWork>(shared_from_this(), sequence, PeersRead::kCopies);
}

std::unique_ptr<Work> GroupCommunicator::reduce_shared(at::Tensor out, std::vector<at::Tensor> inputs,
                                                       ReduceOptions options) {
  constexpr Op kOp = Op::kReduceShared;
  if (inputs.size() != static_cast<std::size_t>(size())) {
    group_->reject(kOp, fmt::format("needs one input for each of {} ranks, got {}", size(), inputs.size()));
  }
  check_sum(kOp, out, inputs[0].scalar_type(), options);
  for (const at::Tensor& input : inputs) {
    check_vector(kOp, "an input", input);
    if (input.scalar_type() != inputs[0].scalar_type() || input.numel() != out.numel()) {
      group_->reject(kOp, fmt::format("every input must have out's {} elements and one dtype", out.numel()));
    }
    if (size() > 1 && input.numel() > 0 &&
        !group_->host().is_shared(bytes_of(input), static_cast<std::int64_t>(input.nbytes()))) {
      group_->reject(kOp, "an input does not lie in memory of map_shared(), so peers cannot see it");
    }
  }
  if (reductions_in_flight >= kMaxReductionsInFlight) {
    group_->reject(
        kOp, fmt::format("{} reductions are in flight, the most there can be: wait for one", reductions_in_flight));
  }
  const Announcement announcement = tensor_announcement(kOp, inputs[0]);
  const auto run = [out, inputs = std::move(inputs), options] {
    std::vector<const void*> pointers;
    for (const at::Tensor& input : inputs) pointers.push_back(input.data_ptr());
    reduce_into(out.data_ptr(), out.scalar_type(), pointers, inputs[0].scalar_type(), out.numel(),
                {ReduceOp::kSum, options.scale, options.accumulate});
  };
  return std::make_unique<GroupWork>(shared_from_this(), start(announcement, run), PeersRead::kMyMemory);
}

std::unique_ptr<Work> GroupCommunicator::all_reduce(at::Tensor t, ReduceOp op) {
  check_vector(Op::kAllReduce, "the tensor", t);
  if (!can_reduce(t.scalar_type(), t.scalar_type())) {
    group_->reject(Op::kAllReduce, fmt::format("{} cannot be reduced", c10::toString(t.scalar_type())));
  }
  const auto run = [this, t, op] {
    const Reduction reduction{op, 1.0, false};
    if (size() == 1 || t.numel() == 0) return;
    if (size() == 2 || static_cast<std::int64_t>(t.nbytes()) <= kSmallBytes) {
      return reduce_whole(*group_, elements_of(t), t.numel(), reduction);
    }
    all_reduce_in_slices(*group_, t, reduction);
  };
  const auto sequence = start(tensor_announcement(Op::kAllReduce, t, static_cast<int>(op)), run);
  return std::make_unique<GroupWork>(shared_from_this(), sequence, PeersRead::kCopies);
}

std::unique_ptr<Work> GroupCommunicator::broadcast(at::Tensor t, int src) {
  check_root(Op::kBroadcast, src);
  check_vector(Op::kBroadcast, "the tensor", t);
  const auto run = [this, t, src] {
    if (t.numel() == 0) return;
    std::vector<Flow> flows(static_cast<std::size_t>(size()));
    flows[static_cast<std::size_t>(src)] = whole(static_cast<std::int64_t>(t.nbytes()), bytes_of(t));
    stream(*group_, bytes_of(t), flows);
  };
  const auto sequence = start(tensor_announcement(Op::kBroadcast, t, src), run);
  return std::make_unique<GroupWork>(shared_from_this(), sequence, PeersRead::kCopies);
}

void GroupCommunicator::barrier() {
  start_and_complete({Op::kBarrier}, [] {});
}

void GroupCommunicator::check_root(Op op, int root) const {
  if (root < 0 || root >= size()) group_->reject(op, fmt::format("rank {} is not in a group of {}", root, size()));
}

void GroupCommunicator::check_vector(Op op, const char* name, const at::Tensor& t) const {
  if (!t.defined()) group_->reject(op, fmt::format("{} is undefined", name));
  if (!t.device().is_cpu() || t.dim() != 1 || !t.is_contiguous()) {
    group_->reject(op, fmt::format("{} must be a 1-D contiguous CPU tensor, it is {}-D, {} and on {}", name, t.dim(),
                                   t.is_contiguous() ? "contiguous" : "not contiguous", t.device().str()));
  }
}

void GroupCommunicator::check_sum(Op op, const at::Tensor& out, c10::ScalarType in,
                                  const ReduceOptions& options) const {
  check_vector(op, "out", out);
  if (!can_reduce(in, out.scalar_type())) {
    group_->reject(op, fmt::format("no sum of {} into {}: floating types may differ, integers not, others have none",
                                   c10::toString(in), c10::toString(out.scalar_type())));
  }
  if (!c10::isFloatingType(in) && (options.scale != 1.0 || options.accumulate)) {
    group_->reject(op, "scale and accumulate need a floating dtype");
  }
}

}  // namespace tessera::comm
