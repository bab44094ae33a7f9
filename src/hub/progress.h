#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace tessera::hub {

/// One line on stderr about a download: redrawn in place on a terminal, elsewhere a line of the log at its begin and
/// its end. Thread-safe.
class Progress {
 public:
  /// what: "3 files of 'org/name'".
  Progress(std::string what, std::int64_t total_bytes);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void add(std::int64_t bytes);
  /// All is there.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string text() const;
  void draw();

  const std::string what_;
  const std::int64_t total_;
  const bool on_terminal_;
  const Clock::time_point start_ = Clock::now();
  std::mutex mutex_;
  std::int64_t done_ = 0;
  Clock::time_point drawn_ = {};
};

}  // namespace tessera::hub
