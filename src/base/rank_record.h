#pragma once
// What the ranks of a host are doing, in memory that others may read at any moment: peers, whose messages about a hang
// say it, and `tessera status`. Only the rank itself writes its record, and waits for nobody.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// A short text that one rank writes and others may read at any moment; half of an old one may then be seen.
class Note {
 public:
  void set(std::string_view text);
  std::string get() const;

 private:
  static constexpr std::size_t kWords = 24;
  std::atomic<std::uint64_t> words_[kWords];
};

/// All zero at the start. Times are nanoseconds of the steady clock, which a host's processes share; 0: never.
struct RankRecord {
  using Time = std::atomic<std::int64_t>;

  std::atomic<std::int32_t> process;  // its id
  std::atomic<std::uint64_t> folder;  // of the run: folder_mark() of its output_dir
  Note phase;                         // "evaluation"
  Note activity;                      // "forward of unit 'encoder.block.3'"
  Time activity_since;
  std::atomic<std::int64_t> step, total_steps;  // the one that is being taken, from 1
  Time step_since, last_step;                   // last_step: how long it took
  Note rows;                                    // that the step is at, of the data set
  // Of an operation in which it has waited for some time.
  Note operation;
  Time waiting_since;                     // 0: it does not wait
  std::atomic<std::int32_t> waiting_for;  // a rank of the world

  void set_activity(std::string_view what);
  /// " (in forward of unit 'encoder.block.3', step 2, rows 5 6)"; empty without a note.
  std::string where() const;
  void begin_step(std::int64_t number, std::int64_t total);
  void end_step();
};

std::int64_t steady_nanoseconds();

/// The same for all names of a folder, which need not be there yet.
std::uint64_t folder_mark(const std::string& folder);

/// The records of the ranks of one host.
class RankRecords {
 public:
  struct Head {
    char mark[16];
    std::int32_t first_rank, ranks, world_size, reserved;
  };

  /// New ones. std::system_error where there is no memory.
  RankRecords(int first_rank, int ranks, int world_size);
  /// Those of another process, by a descriptor, which becomes this object's; null where it is of something else.
  static std::unique_ptr<RankRecords> adopt(int descriptor, bool read_only);
  /// Those that a process holds open, newest first.
  static std::vector<std::unique_ptr<RankRecords>> of_process(const std::string& process);
  ~RankRecords();
  RankRecords(const RankRecords&) = delete;
  RankRecords& operator=(const RankRecords&) = delete;

  /// rank: of the host's, from 0.
  RankRecord& operator[](int rank) const {
    return reinterpret_cast<RankRecord*>(static_cast<std::byte*>(memory_) + kHeadBytes)[rank];
  }
  const Head& head() const { return *static_cast<const Head*>(memory_); }
  /// It stays open as long as the ranks live: by it others find the memory.
  int descriptor() const { return descriptor_; }

 private:
  static constexpr std::size_t kHeadBytes = 64;
  RankRecords() = default;
  bool map(std::size_t bytes, bool read_only);

  int descriptor_ = -1;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tessera
