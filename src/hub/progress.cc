#include "hub/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/env.h"
#include "base/log.h"
#include "base/quantity_text.h"

namespace tessera::hub {

Progress::Progress(std::string what, std::int64_t total_bytes)
    : what_(std::move(what)),
      total_(total_bytes),
      on_terminal_(::isatty(STDERR_FILENO) != 0 && environment("TESSERA_LOG_LEVEL").value_or("info") == "info") {
  if (!on_terminal_) log_info(fmt::format("downloading {}, {}", what_, bytes_text(total_)));
}

Progress::~Progress() {
  if (on_terminal_) std::fputs("\n", stderr);
}

void Progress::add(std::int64_t bytes) {
  constexpr std::chrono::milliseconds kBetween{200};
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  if (!on_terminal_ || Clock::now() - drawn_ < kBetween) return;
  draw();
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  if (on_terminal_)
    draw();
  else
    log_info("downloaded " + text());
}

std::string Progress::text() const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto rate = static_cast<std::int64_t>(static_cast<double>(done_) / std::max(seconds, 1e-3));
  return fmt::format("{}: {} of {}, {}/s", what_, bytes_text(done_), bytes_text(total_), bytes_text(rate));
}

void Progress::draw() {
  drawn_ = Clock::now();
  std::fprintf(stderr, "\r\033[Ktessera: %s", text().c_str());
  std::fflush(stderr);
}

}  // namespace tessera::hub
