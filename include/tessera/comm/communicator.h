#pragma once
// Collectives among the ranks of a group. Every call is collective and must be made by all ranks in the same order with
// the same sizes and dtypes; a mismatch, a dead peer or a timeout throws CommError{rank, operation, sequence}. Sums run
// in rank order with fp32 accumulation (fp64 stays fp64, integers stay integers): same inputs, same bits.
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {
struct RankRecord;
}

namespace tessera::comm {

enum class ReduceOp { kSum, kMax, kMin };

struct ReduceOptions {
  double scale = 1.0;       // applied once, to the finished sum
  bool accumulate = false;  // out += scale * sum, instead of out = scale * sum
};

/// A started operation. Where data must be moved, it makes progress without its caller, on a thread of the group:
/// between hosts, and in all_gather() and reduce_scatter() among the ranks of a host. That thread runs on the caller's
/// cores, so on one host moving data hides behind computation as far as a core has time. These run in wait():
/// reduce_shared(), which sums in place what peers have written; all_reduce() and broadcast() up to 64 KiB on one host;
/// all operations of a group of one. Operations of a group run one at a time in the order in which they were started,
/// and may be waited for in any order, by the thread that started them. Dropping a Work unwaited is an error; it then
/// waits.
class Work {
 public:
  virtual ~Work() = default;
  /// Returns when the output is complete; the operation then holds no tensor any more. CommError if this operation or
  /// an earlier one of the group has failed.
  virtual void wait() = 0;
  /// Returns when no peer reads this rank's input any more, so that it may be overwritten or freed. Implies wait().
  virtual void wait_input_free() { wait(); }
};

/// Memory that every rank of the group addresses at the same offsets (one copy per host). Zero-initialised,
/// page-aligned. Writes become visible to peers through any collective of the group (a barrier() is the fence).
class SharedRegion {
 public:
  virtual ~SharedRegion() = default;
  virtual std::byte* data() const noexcept = 0;
  virtual std::int64_t size_bytes() const noexcept = 0;
};

using Bytes = std::string;  // an opaque object

struct Peers {
  std::string doing;  // "rank 1 (in forward of unit 'encoder'); rank 2 has left the group after 7 operations"
  bool some_left = false;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// "solo", "threads", "shm" (one host), "hosts" (several): what the log calls it.
  virtual std::string backend() const = 0;

  /// out: [size() * in.numel()], 1-D, contiguous, same dtype as in. `in` may be slice rank() of `out`.
  [[nodiscard]] virtual std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in) = 0;
  /// in: [size() * out.numel()], 1-D, contiguous; out may have another floating dtype (the sum is cast once).
  [[nodiscard]] virtual std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions = {}) = 0;
  /// Reduction straight from shared memory: inputs[r] is rank r's contribution to *this* rank's output, a view of a
  /// SharedRegion (size() tensors of out.numel() elements). Starting it says that this rank's contributions to all
  /// others are written; wait_input_free() says that all peers have read them. At most `kMaxReductionsInFlight` may be
  /// started and not yet waited for.
  [[nodiscard]] virtual std::unique_ptr<Work> reduce_shared(at::Tensor out, std::vector<at::Tensor> inputs,
                                                            ReduceOptions = {}) = 0;
  static constexpr int kMaxReductionsInFlight = 8;
  /// In place.
  [[nodiscard]] virtual std::unique_ptr<Work> all_reduce(at::Tensor t, ReduceOp op) = 0;
  [[nodiscard]] virtual std::unique_ptr<Work> broadcast(at::Tensor t, int src) = 0;
  virtual void barrier() = 0;

  /// Objects of any size per rank. gather returns size() objects at dst, none elsewhere; scatter takes size() objects
  /// at src.
  virtual std::vector<Bytes> gather(const Bytes& object, int dst) = 0;
  virtual std::vector<Bytes> all_gather_objects(const Bytes& object) = 0;
  virtual Bytes scatter(const std::vector<Bytes>& objects, int src) = 0;
  virtual Bytes broadcast_object(const Bytes& object, int src) = 0;

  /// Ranks with the same color form a group, ordered by their rank here. The result has its own sequence of operations.
  virtual std::shared_ptr<Communicator> split(int color) = 0;

  /// Not collective. What this rank is doing, "forward of unit 'encoder'": peers' messages about a hang or a mismatch
  /// say it, and `tessera status`. The same for all groups of the rank; cut after some hundred characters.
  virtual void note_activity(const std::string& /*what*/) {}
  /// Where that and more is noted (base/rank_record.h); null: nowhere.
  virtual RankRecord* record() { return nullptr; }

  /// From any thread, not collective. Why the world has failed, as far as this host knows; empty: it has not. And what
  /// the other ranks of the group on this host do.
  virtual std::string failure() const { return {}; }
  virtual Peers peers() const { return {}; }
  /// From any thread, not collective: the world has failed, which peers that wait shall learn.
  virtual void tell_failure(const std::string& /*why*/) {}

  /// Memory addressed by all ranks, or null where the ranks share none (then gathers copy).
  virtual std::shared_ptr<SharedRegion> map_shared(std::int64_t size_bytes) = 0;
};

/// A world of one: every operation is the identity. map_shared gives private memory.
std::shared_ptr<Communicator> make_solo();

/// Ranks as threads of one process (tests, notebooks): element r goes to the thread that plays rank r.
std::vector<std::shared_ptr<Communicator>> make_threads(int size,
                                                        std::chrono::milliseconds timeout = std::chrono::minutes(5));

/// Runs body(communicator) on `size` threads and rethrows the first exception (after telling the other ranks, which get
/// a CommError). Each thread starts with its own autograd and thread-count state (at::get_num_threads() called once).
void run_threads(int size, const std::function<void(std::shared_ptr<Communicator>)>& body);

struct RendezvousOptions {
  std::string backend = "auto";  // auto | solo | shm | hosts; the resolved name is in backend()
  std::chrono::milliseconds init_timeout{300'000}, op_timeout{1'800'000};
};

/// Collective. Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE (torchrun's names), else OMPI_COMM_WORLD_*, PMI_*,
/// SLURM_PROCID/SLURM_NTASKS/SLURM_LOCALID. No such variable: a world of one. Ranks on several hosts meet at
/// MASTER_ADDR:MASTER_PORT, where torchrun's agent or rank 0 listens. Never degrades: missing peers are a CommError
/// after init_timeout (after op_timeout or TESSERA_COMM_TIMEOUT_S where that is less, but not before 10 s),
/// contradictory or missing variables a ConfigError. Where OMP_NUM_THREADS is not set, the ranks of a host share its
/// cores: libtorch's threads are cores / ranks.
std::shared_ptr<Communicator> connect(const RendezvousOptions& options = {});

}  // namespace tessera::comm
