#pragma once
// A progress bar like tqdm's:  " 40%|████      | 8/20 [00:03<00:05,  2.1it/s, loss=1.23]".
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace tessera::report {

enum class BarStyle { kOff, kPlain, kTerminal };

/// kTerminal redraws in place at most ten times a second; kPlain (logs, pipes) writes one line at each tenth of the
/// way, also to a terminal with TERM=dumb.
BarStyle bar_style(int rank, bool disabled);

/// The beginning of a text in UTF-8 with as many characters, each one column wide: a line that is longer than the
/// terminal cannot be redrawn in place.
std::string first_columns(const std::string& text, std::size_t columns);

class ProgressBar {
 public:
  ProgressBar(std::ostream& out, BarStyle style, std::int64_t total, std::string description = {});
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void update(std::int64_t n = 1);
  /// Takes the bar off the terminal's line until the next update, so that something else can be printed.
  void clear();
  /// Counts work that was done before, without drawing it as progress of this run.
  void start_at(std::int64_t done) { done_ = started_at_ = done; }
  void set_postfix(std::string postfix) { postfix_ = std::move(postfix); }
  /// Ends the line; later calls do nothing.
  void close();

 private:
  void draw();
  std::ostream& out_;
  BarStyle style_;
  std::int64_t total_, done_ = 0, started_at_ = 0, next_plain_ = 0;
  std::string description_, postfix_;
  std::chrono::steady_clock::time_point start_, last_draw_;
  bool closed_ = false;
};

}  // namespace tessera::report
