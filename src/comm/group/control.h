#pragma once
// The memory that the ranks of a group share: who has started and finished which operation, and the staging buffers.
// It lies in a memfd mapped by every process (shm) or in ordinary memory (threads, solo); all of it is zero at the
// start.
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tessera::comm {

enum class Op : std::int32_t {
  kNone,
  kAllGather,
  kReduceScatter,
  kReduceShared,
  kAllReduce,
  kBroadcast,
  kBarrier,
  kGather,
  kAllGatherObjects,
  kScatter,
  kBroadcastObject,
  kSplit,
  kMapShared,
};
const char* op_name(Op op);

/// What a rank says about an operation when it starts it. All but `bytes` must agree among the ranks.
struct Announcement {
  Op op = Op::kNone;
  std::int32_t dtype = -1;  // c10::ScalarType, -1 for objects
  std::int32_t detail = 0;  // source or destination rank, or the kind of reduction
  std::int32_t reserved = 0;
  std::int64_t numel = 0;
  std::int64_t bytes = 0;  // size of this rank's own object
};

/// Operations that a rank may be ahead of the slowest.
constexpr int kRing = 32;
/// Staging buffers of a rank: it may be this many rounds ahead of the slowest reader.
constexpr int kStages = 8;
constexpr std::int64_t kStageBytes = 512 * 1024;
constexpr std::int64_t kCacheLine = 64;

/// Counters of one rank. Only this rank writes them, but for the bell, which anybody rings.
struct RankState {
  alignas(kCacheLine)
      std::atomic<std::uint32_t> bell;  // futex word: changes when a counter that this rank waits for may have
  std::atomic<std::uint32_t> sleepers;
  alignas(kCacheLine) std::atomic<std::uint64_t> posted;    // operations started
  alignas(kCacheLine) std::atomic<std::uint64_t> done;      // operations finished: no memory of a peer is read any more
  alignas(kCacheLine) std::atomic<std::uint64_t> pushed;    // rounds whose stage this rank has filled
  alignas(kCacheLine) std::atomic<std::uint64_t> consumed;  // rounds whose stages this rank has read
  alignas(kCacheLine) std::atomic<std::uint32_t> left;      // 1: destroyed its communicator
};

/// A view of the shared memory of a group of `size` ranks.
class Control {
 public:
  Control(std::byte* base, int size) : base_(base), size_(size) {}
  static std::int64_t bytes(int size);

  RankState& rank(int r) const { return reinterpret_cast<RankState*>(base_)[r]; }
  Announcement& announcement(std::uint64_t sequence, int r) const {
    auto* first = reinterpret_cast<Announcement*>(base_ + static_cast<std::int64_t>(sizeof(RankState)) * size_);
    return first[static_cast<std::int64_t>(sequence % kRing) * size_ + r];
  }
  /// kStageBytes that rank r fills in this round.
  std::byte* stage(std::uint64_t round, int r) const {
    return base_ + header_bytes(size_) + (r * kStages + static_cast<std::int64_t>(round % kStages)) * kStageBytes;
  }

 private:
  static std::int64_t header_bytes(int size);
  std::byte* base_;
  int size_;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "processes share these");

}  // namespace tessera::comm
