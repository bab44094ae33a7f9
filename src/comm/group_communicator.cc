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

constexpr std::int64_t kSmallBytes = 64 * 1024;  // below, two phases of an all_reduce cost more than they save

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

std::unique_ptr<Work> GroupCommunicator::submit(const Announcement& announcement, std::function<void()> run) {
  return std::make_unique<GroupWork>(shared_from_this(), start(announcement, std::move(run)), PeersRead::kCopies);
}

void GroupCommunicator::start_and_complete(const Announcement& announcement, std::function<void()> run) {
  complete(start(announcement, std::move(run)));
}

std::unique_ptr<Work> GroupCommunicator::all_gather(at::Tensor out, at::Tensor in) {
  arguments().check_all_gather(out, in);
  const Announcement announcement = tensor_announcement(Op::kAllGather, in);
  const auto run = [this, out, in] {
    const auto bytes = static_cast<std::int64_t>(in.nbytes());
    std::vector<Flow> flows;
    for (int r = 0; r < size(); ++r) flows.push_back(whole(bytes, bytes == 0 ? nullptr : bytes_of(out) + r * bytes));
    stream(*group_, bytes == 0 ? nullptr : bytes_of(in), flows);
  };
  return submit(announcement, run);
}

std::unique_ptr<Work> GroupCommunicator::reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions options) {
  arguments().check_reduce_scatter(out, in, options);
  const auto run = [this, out, in, options] {
    std::vector<Slice> slices;
    for (int r = 0; r < size(); ++r) slices.push_back({r * out.numel(), out.numel()});
    reduce_slices(*group_, elements_of(out), elements_of(in), slices,
                  {ReduceOp::kSum, options.scale, options.accumulate});
  };
  return submit(tensor_announcement(Op::kReduceScatter, in), run);
}

std::unique_ptr<Work> GroupCommunicator::reduce_shared(at::Tensor out, std::vector<at::Tensor> inputs,
                                                       ReduceOptions options) {
  constexpr Op kOp = Op::kReduceShared;
  if (inputs.size() != static_cast<std::size_t>(size())) {
    group_->reject(kOp, fmt::format("needs one input for each of {} ranks, got {}", size(), inputs.size()));
  }
  const Arguments check = arguments();
  check.check_sum(kOp, out, inputs[0].scalar_type(), options);
  for (const at::Tensor& input : inputs) {
    check.check_vector(kOp, "an input", input);
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
  arguments().check_all_reduce(t);
  const auto run = [this, t, op] {
    const Reduction reduction{op, 1.0, false};
    if (size() == 1 || t.numel() == 0) return;
    if (size() == 2 || static_cast<std::int64_t>(t.nbytes()) <= kSmallBytes) {
      return reduce_whole(*group_, elements_of(t), t.numel(), reduction);
    }
    all_reduce_in_slices(*group_, t, reduction);
  };
  return submit(tensor_announcement(Op::kAllReduce, t, static_cast<int>(op)), run);
}

std::unique_ptr<Work> GroupCommunicator::broadcast(at::Tensor t, int src) {
  arguments().check_broadcast(t, src);
  const auto run = [this, t, src] {
    if (t.numel() == 0) return;
    std::vector<Flow> flows(static_cast<std::size_t>(size()));
    flows[static_cast<std::size_t>(src)] = whole(static_cast<std::int64_t>(t.nbytes()), bytes_of(t));
    stream(*group_, bytes_of(t), flows);
  };
  return submit(tensor_announcement(Op::kBroadcast, t, src), run);
}

void GroupCommunicator::barrier() {
  start_and_complete({Op::kBarrier}, [] {});
}

}  // namespace tessera::comm
