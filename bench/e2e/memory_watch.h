#pragma once
// What a rank holds, beside what it should hold.
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace tessera::bench {

/// The highest memory of each of these processes while this lives, above its base: that at construction. Means over the
/// processes. A file that several of them map (the frozen base, the slots of a gather) counts in equal parts for all of
/// them, at every moment: its proportional memory alone would count a page whole for the process that touches it first,
/// and so twice, where peaks are of different moments. Looks again after a millisecond (a look takes some more: the
/// kernel walks the pages), for what is offloaded peaks for a tenth of a second.
class MemoryWatch {
 public:
  /// processes: their ids.
  explicit MemoryWatch(std::vector<std::string> processes);
  ~MemoryWatch();
  /// Once it is stopped and the model is gone: what the processes still hold beyond these bytes of each is the
  /// program's and its libraries' own (oneDNN keeps half a megabyte for every kind of product), and so part of the
  /// base.
  void leave_out_what_stays(const std::vector<std::string>& bytes);
  std::int64_t base_bytes() const;
  /// After stop().
  std::int64_t peak_bytes() const;
  /// Of all processes together: memory of their own alone, without any base taken off.
  std::int64_t private_peak_bytes() const { return private_peak_; }
  void stop();

 private:
  std::vector<std::int64_t> look();
  std::vector<std::string> processes_;
  std::int64_t private_now_ = 0, private_peak_ = 0;
  std::vector<std::int64_t> base_, peak_;  // by process
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace tessera::bench
