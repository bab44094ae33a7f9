#include "comm/group/group_communicator.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

namespace tessera::comm {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements of a sum that a thread takes

enum class PeersRead { kCopies, kMyMemory };

class GroupWork : public Work {
 public:
  /// `owner` keeps `communicator`, or is it.
  GroupWork(std::shared_ptr<Communicator> owner, GroupCommunicator& communicator, std::uint64_t sequence,
            PeersRead peers_read)
      : owner_(std::move(owner)), communicator_(communicator), sequence_(sequence), peers_read_(peers_read) {
    if (peers_read_ == PeersRead::kMyMemory) ++communicator_.reductions_in_flight;
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
    if (!complete_) communicator_.queue().wait(sequence_);
    complete_ = true;
    count_as_waited();
  }

  void wait_input_free() override {
    wait();
    if (peers_read_ == PeersRead::kMyMemory)
      communicator_.queue().with_turn([this] { communicator_.group().await_finished(sequence_); });
  }

 private:
  void count_as_waited() {
    if (counted_ && peers_read_ == PeersRead::kMyMemory) --communicator_.reductions_in_flight;
    counted_ = false;
  }

  std::shared_ptr<Communicator> owner_;
  GroupCommunicator& communicator_;
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

std::unique_ptr<Work> GroupCommunicator::submit(const Announcement& announcement, std::function<void()> run,
                                                Progress progress, std::shared_ptr<Communicator> owner) {
  const auto sequence = queue_.start(announcement, std::move(run), progress);
  return std::make_unique<GroupWork>(std::move(owner), *this, sequence, PeersRead::kCopies);
}

Progress GroupCommunicator::progress() const {
  return size() > 1 ? Progress::kByItself : Progress::kWhenWaited;
}

// Their callers mostly wait at once, and a few KiB have moved before a thread wakes up.
Progress GroupCommunicator::progress_if_large(const at::Tensor& t) const {
  return static_cast<std::int64_t>(t.nbytes()) > kSmallBytes ? progress() : Progress::kWhenWaited;
}

void GroupCommunicator::start_and_complete(const Announcement& announcement, std::function<void()> run) {
  queue_.wait(queue_.start(announcement, std::move(run), Progress::kWhenWaited));
}

void GroupCommunicator::fail(int world_rank, const std::string& message) {
  queue_.with_turn([&] { group_->fail(world_rank, message); });
  std::abort();  // with_turn() has thrown
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
  return submit(announcement, run, progress(), shared_from_this());
}

std::unique_ptr<Work> GroupCommunicator::reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions options) {
  arguments().check_reduce_scatter(out, in, options);
  const auto run = [this, out, in, options] {
    std::vector<Slice> slices;
    for (int r = 0; r < size(); ++r) slices.push_back({r * out.numel(), out.numel()});
    reduce_slices(*group_, elements_of(out), elements_of(in), slices,
                  {ReduceOp::kSum, options.scale, options.accumulate});
  };
  return submit(tensor_announcement(Op::kReduceScatter, in), run, progress(), shared_from_this());
}

std::unique_ptr<Work> GroupCommunicator::reduce_shared(at::Tensor out, std::vector<at::Tensor> inputs,
                                                       ReduceOptions options) {
  constexpr Op kOp = Op::kReduceShared;
  if (inputs.size() != static_cast<std::size_t>(size())) {
    arguments().reject(kOp, fmt::format("needs one input for each of {} ranks, got {}", size(), inputs.size()));
  }
  const Arguments check = arguments();
  check.check_sum(kOp, out, inputs[0].scalar_type(), options);
  for (const at::Tensor& input : inputs) {
    check.check_vector(kOp, "an input", input);
    if (input.scalar_type() != inputs[0].scalar_type() || input.numel() != out.numel()) {
      arguments().reject(kOp, fmt::format("every input must have out's {} elements and one dtype", out.numel()));
    }
    if (size() > 1 && input.numel() > 0 &&
        !group_->host().is_shared(bytes_of(input), static_cast<std::int64_t>(input.nbytes()))) {
      arguments().reject(kOp, "an input does not lie in memory of map_shared(), so peers cannot see it");
    }
  }
  if (reductions_in_flight >= kMaxReductionsInFlight) {
    arguments().reject(
        kOp, fmt::format("{} reductions are in flight, the most there can be: wait for one", reductions_in_flight));
  }
  const Announcement announcement = tensor_announcement(kOp, inputs[0]);
  const auto run = [out, inputs = std::move(inputs), options] {
    at::parallel_for(0, out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::vector<const void*> pointers;
      for (const at::Tensor& input : inputs)
        pointers.push_back(static_cast<const std::byte*>(input.data_ptr()) + begin * input.element_size());
      reduce_into(static_cast<std::byte*>(out.data_ptr()) + begin * out.element_size(), out.scalar_type(), pointers,
                  inputs[0].scalar_type(), end - begin, {ReduceOp::kSum, options.scale, options.accumulate});
    });
  };
  const auto sequence = queue_.start(announcement, run, Progress::kWhenWaited);
  return std::make_unique<GroupWork>(shared_from_this(), *this, sequence, PeersRead::kMyMemory);
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
  return submit(tensor_announcement(Op::kAllReduce, t, static_cast<int>(op)), run, progress_if_large(t),
                shared_from_this());
}

std::unique_ptr<Work> GroupCommunicator::broadcast(at::Tensor t, int src) {
  arguments().check_broadcast(t, src);
  const auto run = [this, t, src] {
    if (t.numel() == 0) return;
    std::vector<Flow> flows(static_cast<std::size_t>(size()));
    flows[static_cast<std::size_t>(src)] = whole(static_cast<std::int64_t>(t.nbytes()), bytes_of(t));
    stream(*group_, bytes_of(t), flows);
  };
  return submit(tensor_announcement(Op::kBroadcast, t, src), run, progress_if_large(t), shared_from_this());
}

void GroupCommunicator::barrier() {
  start_and_complete({Op::kBarrier}, [] {});
}

}  // namespace tessera::comm
