// Collectives of GPUs by NCCL, on a stream of their own.
//
// Note [Streams]
// An operation waits, on the engine's stream, for what the caller's current stream had been told before it was started;
// Work::wait() makes the current stream wait for the operation. Memory needs no more than that: a tensor is freed, or
// written again, by the stream that computes, after it was told to wait.
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "base/plain_reason.h"
#include "base/rank_record.h"
#include "comm/device/device_communicator.h"
#include "comm/device/nccl.h"
#include "comm/rendezvous/environment.h"
#include "tensor/device_kernels.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

/// What the rank is doing, as errors say it.
std::string where(Communicator& host) {
  const auto* record = host.record();
  return record == nullptr ? std::string() : record->where();
}

/// Watches operations that were started: one that does not end in time, that NCCL reports as failed, or that runs when
/// the world has failed, breaks the communicator, so that the device and whoever waits for it go on.
class Watch {
 public:
  Watch(const NcclApi& api, NcclComm comm, Communicator& host, at::Device device, Clock::duration limit)
      : api_(api), comm_(comm), host_(host), limit_(limit), thread_([this, device] { run(device); }) {}
  ~Watch() { finish(); }

  void add(c10::Event done, std::string what) {
    const std::lock_guard lock(mutex_);
    started_.push_back({std::move(done), std::move(what), Clock::now()});
  }
  /// While one lives, the rank tells NCCL of an operation. CommError once something has failed.
  class Calls {
   public:
    Calls(Watch& watch, const std::string& operation) : watch_(watch) {
      const std::lock_guard lock(watch_.mutex_);
      watch_.throw_failure(operation);
      watch_.in_calls_ = true;
    }
    ~Calls() {
      const std::lock_guard lock(watch_.mutex_);
      watch_.in_calls_ = false;
      watch_.changed_.notify_all();
    }
    Calls(const Calls&) = delete;
    Calls& operator=(const Calls&) = delete;

   private:
    Watch& watch_;
  };
  /// What was started last has failed: the communicator breaks.
  void fail_now(const std::string& why) {
    std::unique_lock lock(mutex_);
    if (failure_.empty()) fail(why, lock);
  }
  /// CommError once something has failed.
  void check(const std::string& operation) {
    const std::lock_guard lock(mutex_);
    throw_failure(operation);
  }
  /// When all that was started has ended; false: the communicator broke.
  bool finish() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    return failure_.empty();
  }

 private:
  struct Started {
    c10::Event done;
    std::string what;
    Clock::time_point begin;
  };

  void run(at::Device device) {
    const c10::OptionalDeviceGuard guard(device);  // else CUDA takes memory of GPU 0 for what this thread asks
    std::unique_lock lock(mutex_);
    while (!ends_ || (!started_.empty() && failure_.empty())) {
      changed_.wait_for(lock, std::chrono::milliseconds(ends_ ? 1 : 100));
      try {
        forget_ended();
      } catch (const std::exception& e) {  // the device itself has failed
        if (failure_.empty()) fail_first(plain_reason(e), lock);
        started_.clear();
      }
      if (!failure_.empty()) continue;
      int error = kNcclSuccess;
      const bool asked = api_.comm_get_async_error(comm_, &error) == kNcclSuccess;
      if (asked && error != kNcclSuccess && error != kNcclInProgress) {
        fail_first(std::string("NCCL: ") + api_.get_error_string(error) + " (" + api_.get_last_error(comm_) + ")",
                   lock);
      } else if (!started_.empty()) {
        const auto waited = Clock::now() - started_.front().begin;
        const auto failed = host_.failure();
        const auto peers = host_.peers();
        const auto most = peers.some_left ? std::min<Clock::duration>(limit_, kPatience) : limit_;
        if (!failed.empty())
          fail_first("another rank has failed. " + failed, lock);
        else if (waited > most)
          fail_first(fmt::format("no progress for {:g} s; has another rank ended, or does it run other modules? {} "
                                 "(TESSERA_COMM_TIMEOUT_S sets the time)",
                                 std::chrono::duration<double>(most).count(), peers.doing),
                     lock);
      }
    }
  }
  void forget_ended() {
    while (!started_.empty() && started_.front().done.query()) {
      started_.pop_front();
      if (!started_.empty()) started_.front().begin = Clock::now();  // it ran behind that one
    }
  }
  void throw_failure(const std::string& operation) const {
    if (!failure_.empty()) throw CommError(failure_, host_.rank(), operation, 0);
  }
  void fail_first(const std::string& why, std::unique_lock<std::mutex>& lock) {
    fail("rank " + std::to_string(host_.rank()) + ": " +
             (started_.empty() ? "between operations" + where(host_) : started_.front().what) + ": " + why,
         lock);
  }
  /// Frees the communicator, so the rank's calls end before; one that waits for other ranks is ended by that itself.
  void fail(const std::string& why, std::unique_lock<std::mutex>& lock) {
    failure_ = why;
    log_error(failure_);
    host_.tell_failure(failure_);
    changed_.wait_for(lock, kLongestCalls, [this] { return !in_calls_; });
    api_.comm_abort(comm_);
  }

  static constexpr std::chrono::seconds kPatience{30};  // once a rank has left
  static constexpr std::chrono::seconds kLongestCalls{2};

  const NcclApi& api_;
  const NcclComm comm_;
  Communicator& host_;
  const Clock::duration limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Started> started_;
  std::string failure_;
  bool ends_ = false, in_calls_ = false;
  std::thread thread_;
};

class NcclWork final : public Work {
 public:
  NcclWork(c10::Event done, at::Device device, std::vector<at::Tensor> tensors, Watch& watch, const char* operation)
      : done_(std::move(done)), device_(device), tensors_(std::move(tensors)), watch_(watch), operation_(operation) {}
  ~NcclWork() override {
    if (!tensors_.empty()) block();
  }
  void wait() override {
    block();
    watch_.check(operation_);
  }

 private:
  void block() {
    if (tensors_.empty()) return;
    done_.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    tensors_.clear();
  }

  c10::Event done_;
  at::Device device_;
  std::vector<at::Tensor> tensors_;  // that the operation reads and writes
  Watch& watch_;
  const char* operation_;
};

class NcclEngine final : public DeviceEngine {
 public:
  NcclEngine(std::shared_ptr<Communicator> host, at::Device device)
      : api_(nccl()), host_(std::move(host)), device_(device), stream_(own_stream(device)) {
    const c10::OptionalDeviceGuard guard(device_);
    NcclUniqueId id{};
    Bytes bytes;
    if (host_->rank() == 0) {
      require(api_.get_unique_id(&id), "ncclGetUniqueId");
      bytes.assign(id.bytes, sizeof id.bytes);
    }
    bytes = host_->broadcast_object(bytes, 0);
    std::memcpy(id.bytes, bytes.data(), sizeof id.bytes);
    require(api_.comm_init_rank(&comm_, host_->size(), id, host_->rank()), "ncclCommInitRank");
    watch_.emplace(api_, comm_, *host_, device_, operation_timeout(RendezvousOptions().op_timeout));
  }
  ~NcclEngine() override {
    if (watch_ && watch_->finish()) api_.comm_destroy(comm_);
  }
  std::string name() const override { return "nccl"; }
  void check() override { watch_->check("an exchange of objects"); }

  std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in) override {
    return run("all_gather", {out, in}, [&](NcclStream stream) { gather(out, in, stream); });
  }

  /// Every rank sends each part to the one that sums it: the bytes of a ring, and sums in rank order.
  std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions how) override {
    return run("reduce_scatter", {out, in}, [&](NcclStream stream) { sum_parts(out, in, how, stream); });
  }

  std::unique_ptr<Work> all_reduce(at::Tensor t, ReduceOp op) override {
    return run("all_reduce", {t}, [&](NcclStream stream) {
      if (op != ReduceOp::kSum) {
        require(api_.all_reduce(t.const_data_ptr(), t.mutable_data_ptr(), static_cast<std::size_t>(t.numel()),
                                dtype_of(t), op == ReduceOp::kMax ? kNcclMax : kNcclMin, comm_, stream),
                "ncclAllReduce");
        return;
      }
      const auto flat = t.view(-1);
      const std::int64_t ranks = host_->size(), part = flat.numel() / ranks;
      if (part > 0) {
        const auto whole = flat.narrow(0, 0, part * ranks), mine = whole.narrow(0, part * host_->rank(), part);
        sum_parts(mine, whole, {}, stream);
        gather(whole, mine, stream);
      }
      if (const auto rest = flat.numel() - part * ranks; rest > 0) {
        const auto last = flat.narrow(0, part * ranks, rest);
        const auto all = at::empty({ranks * rest}, last.options());
        gather(all, last, stream);
        rank_sum(last, all, {});
      }
    });
  }

  std::unique_ptr<Work> broadcast(at::Tensor t, int src) override {
    return run("broadcast", {t}, [&](NcclStream stream) {
      require(api_.broadcast(t.const_data_ptr(), t.mutable_data_ptr(), t.nbytes(), kNcclUint8, src, comm_, stream),
              "ncclBroadcast");
    });
  }

  std::unique_ptr<DeviceEngine> split(std::shared_ptr<Communicator> part) override {
    return std::make_unique<NcclEngine>(std::move(part), device_);
  }

 private:
  static c10::Stream own_stream(at::Device device) {
    const c10::OptionalDeviceGuard guard(device);
    return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }

  /// f(stream) on the engine's stream, which is the current one meanwhile. See Note [Streams].
  template <class F>
  std::unique_ptr<Work> run(const char* operation, std::vector<at::Tensor> tensors, const F& f) {
    watch_->check(operation);
    const c10::OptionalDeviceGuard guard(device_);
    const c10::impl::VirtualGuardImpl impl(device_.type());
    c10::Event ready(device_.type());
    ready.record(impl.getStream(device_));
    ready.block(stream_);
    const auto what = fmt::format("{} of {} {}{}", operation, tensors.front().numel(),
                                  c10::toString(tensors.front().scalar_type()), where(*host_));
    try {
      const c10::StreamGuard on_stream(stream_);
      const Watch::Calls calls(*watch_, operation);
      f(tensor::current_stream(tensors.front()));
    } catch (const CommError& e) {
      watch_->fail_now(std::string(e.what()) + ", in " + what);
      work_of(std::move(tensors), operation)->wait();  // what NCCL was told of may still use them; throws
    } catch (const std::exception& e) {
      watch_->fail_now(fmt::format("rank {}: {}: {}", host_->rank(), what, plain_reason(e.what())));
      const auto work = work_of(std::move(tensors), operation);
      throw;
    }
    c10::Event watched(device_.type());
    watched.record(stream_);
    watch_->add(std::move(watched), what);
    return work_of(std::move(tensors), operation);
  }

  /// All that the engine's stream was told so far.
  std::unique_ptr<Work> work_of(std::vector<at::Tensor> tensors, const char* operation) {
    c10::Event done(device_.type());
    done.record(stream_);
    return std::make_unique<NcclWork>(std::move(done), device_, std::move(tensors), *watch_, operation);
  }

  void gather(const at::Tensor& out, const at::Tensor& in, NcclStream stream) {
    require(api_.all_gather(in.const_data_ptr(), out.mutable_data_ptr(), in.nbytes(), kNcclUint8, comm_, stream),
            "ncclAllGather");
  }

  /// out becomes the sum over ranks of their part of `in` that is this rank's.
  void sum_parts(const at::Tensor& out, const at::Tensor& in, ReduceOptions how, NcclStream stream) {
    const auto ranks = host_->size();
    const auto bytes = static_cast<std::size_t>(in.numel() / ranks) * in.element_size();
    const auto received = at::empty({in.numel()}, in.options());
    require(api_.group_start(), "ncclGroupStart");
    try {
      for (int r = 0; r < ranks; ++r) {
        const auto offset = bytes * static_cast<std::size_t>(r);
        require(
            api_.send(static_cast<const std::byte*>(in.const_data_ptr()) + offset, bytes, kNcclUint8, r, comm_, stream),
            "ncclSend");
        require(api_.recv(static_cast<std::byte*>(received.mutable_data_ptr()) + offset, bytes, kNcclUint8, r, comm_,
                          stream),
                "ncclRecv");
      }
    } catch (...) {
      api_.group_end();  // else all that this thread tells NCCL later waits for it
      throw;
    }
    require(api_.group_end(), "ncclGroupEnd");
    rank_sum(out, received, how);
  }

  /// inputs: the ranks' contributions, one after another.
  void rank_sum(const at::Tensor& out, const at::Tensor& inputs, ReduceOptions how) const {
    const std::int64_t ranks = host_->size();
    if (tensor::has_device_kernels(inputs) && tensor::has_device_kernels(out)) {
      tensor::launch(&DeviceKernels::rank_sum, "rank_sum", out,
                     DeviceRankSum{.inputs = tensor::read_there(inputs),
                                   .out = tensor::written_there(out),
                                   .dtype = tensor::device_dtype(inputs.scalar_type()),
                                   .out_dtype = tensor::device_dtype(out.scalar_type()),
                                   .count = ranks,
                                   .numel = out.numel(),
                                   .scale = static_cast<float>(how.scale),
                                   .accumulate = how.accumulate});
      return;
    }
    const auto rows = inputs.view({ranks, -1});
    const bool narrow = inputs.is_floating_point() && inputs.scalar_type() != at::kDouble;
    auto sum = narrow ? rows[0].to(at::kFloat, /*non_blocking=*/false, /*copy=*/true) : rows[0].clone();
    for (std::int64_t r = 1; r < ranks; ++r) sum.add_(rows[r]);
    if (how.scale != 1) sum.mul_(how.scale);
    const auto flat = out.view(-1);
    if (how.accumulate) sum.add_(flat);
    flat.copy_(sum);
  }

  static NcclDtype dtype_of(const at::Tensor& t) {
    switch (t.scalar_type()) {
      case at::kFloat:
        return kNcclFloat;
      case at::kDouble:
        return kNcclDouble;
      case at::kBFloat16:
        return kNcclBFloat16;
      case at::kHalf:
        return kNcclHalf;
      case at::kInt:
        return kNcclInt32;
      case at::kLong:
        return kNcclInt64;
      default:
        throw Error(std::string("NCCL: no maximum of dtype ") + c10::toString(t.scalar_type()));
    }
  }

  void require(int result, const char* call) const {
    if (result == kNcclSuccess || result == kNcclInProgress) return;
    throw CommError("rank " + std::to_string(host_->rank()) + ": " + call + ": " + api_.get_error_string(result) +
                        " (" + api_.get_last_error(comm_) + "); NCCL_DEBUG=INFO says more",
                    host_->rank(), call, 0);
  }

  const NcclApi& api_;
  std::shared_ptr<Communicator> host_;
  at::Device device_;
  c10::Stream stream_;
  NcclComm comm_ = nullptr;
  std::optional<Watch> watch_;
};

}  // namespace

std::unique_ptr<DeviceEngine> make_nccl_engine(std::shared_ptr<Communicator> host, at::Device device) {
  return std::make_unique<NcclEngine>(std::move(host), device);
}

}  // namespace tessera::comm
