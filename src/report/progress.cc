#include "report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <ostream>

#include "base/env.h"

namespace tessera::report {
namespace {

using Clock = std::chrono::steady_clock;

std::string clock_text(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds);
  return s < 3600 ? fmt::format("{:02}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

/// The last column stays free: some terminals begin a new line behind it.
std::size_t usable_columns() {
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return is_known ? size.ws_col - 1U : std::numeric_limits<std::size_t>::max();
}

std::string bar_text(double fraction) {
  constexpr int kWidth = 10;
  std::string bar;
  const int full = static_cast<int>(fraction * kWidth);
  for (int i = 0; i < kWidth; ++i) bar += i < full ? "█" : " ";
  return bar;
}

}  // namespace

BarStyle bar_style(int rank, bool disabled) {
  if (rank != 0 || disabled) return BarStyle::kOff;
  return isatty(STDERR_FILENO) && environment("TERM") != "dumb" ? BarStyle::kTerminal : BarStyle::kPlain;
}

std::string first_columns(const std::string& text, std::size_t columns) {
  std::size_t at = 0;
  for (std::size_t seen = 0; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (begins && ++seen > columns) break;
  }
  return text.substr(0, at);
}

ProgressBar::ProgressBar(std::ostream& out, BarStyle style, std::int64_t total, std::string description)
    : out_(out),
      style_(style),
      total_(total),
      description_(std::move(description)),
      start_(Clock::now()),
      last_draw_(start_) {}

ProgressBar::~ProgressBar() {
  close();
}

void ProgressBar::update(std::int64_t n) {
  done_ += n;
  if (style_ == BarStyle::kOff || closed_) return;
  const auto now = Clock::now();
  if (style_ == BarStyle::kTerminal && now - last_draw_ < std::chrono::milliseconds(100) && done_ < total_) return;
  if (style_ == BarStyle::kPlain) {
    if (done_ < next_plain_ && done_ < total_) return;
    next_plain_ = done_ + std::max<std::int64_t>(1, (total_ + 9) / 10);
  }
  last_draw_ = now;
  draw();
}

void ProgressBar::draw() {
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  const double fraction = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 0.0;
  const double rate = elapsed > 0 ? static_cast<double>(done_ - started_at_) / elapsed : 0.0;
  const double left = rate > 0 ? static_cast<double>(total_ - done_) / rate : 0.0;
  const std::string speed =
      rate >= 1 || rate == 0 ? fmt::format("{:.2f}it/s", rate) : fmt::format("{:.2f}s/it", 1 / rate);
  std::string text = fmt::format("{}{}{:3.0f}%|{}| {}/{} [{}<{}, {}{}{}]", description_,
                                 description_.empty() ? "" : ": ", fraction * 100, bar_text(fraction), done_, total_,
                                 clock_text(elapsed), clock_text(left), speed, postfix_.empty() ? "" : ", ", postfix_);
  if (style_ == BarStyle::kTerminal) {
    out_ << '\r' << first_columns(text, usable_columns()) << "\x1b[K" << std::flush;
  } else {
    out_ << text << '\n' << std::flush;
  }
}

void ProgressBar::clear() {
  if (style_ == BarStyle::kTerminal && !closed_) out_ << "\r\x1b[K" << std::flush;
}

void ProgressBar::close() {
  if (closed_) return;
  closed_ = true;
  if (style_ == BarStyle::kTerminal) {
    draw();
    out_ << '\n' << std::flush;
  }
}

}  // namespace tessera::report
