#include "base/line_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t kBlock = 1 << 16;

}  // namespace

LineReader::LineReader(int descriptor, std::string name, std::function<void()> before_wait, std::size_t max_line_bytes)
    : descriptor_(descriptor),
      name_(std::move(name)),
      before_wait_(std::move(before_wait)),
      max_line_bytes_(max_line_bytes) {}

bool LineReader::next(std::string_view& line) {
  for (;;) {
    const auto end = buffer_.find('\n', searched_);
    if (std::min(end, buffer_.size()) - begin_ > max_line_bytes_) fail_long_row(name_, number_ + 1, max_line_bytes_);
    if (end == std::string::npos && !ended_) {
      searched_ = buffer_.size();
      ended_ = !fill();
      continue;
    }
    if (end == std::string::npos && begin_ == buffer_.size()) return false;
    const auto stop = end == std::string::npos ? buffer_.size() : end;
    line = std::string_view(buffer_).substr(begin_, stop - begin_);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin_ = searched_ = end == std::string::npos ? stop : end + 1;
    ++number_;
    return true;
  }
}

bool LineReader::fill() {
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  const auto size = buffer_.size();
  // Long lines: doubled, so that the time stays linear, up to what shows that a line is too long.
  const auto block = std::max(kBlock, std::min(size, max_line_bytes_ - std::min(max_line_bytes_, size)));
  buffer_.resize(size + block);
  before_wait_();
  ssize_t got = 0;
  do {
    got = ::read(descriptor_, buffer_.data() + size, block);
  } while (got < 0 && errno == EINTR);
  if (got < 0) throw DataError(fmt::format("cannot read {}: {}", name_, std::strerror(errno)), name_);
  buffer_.resize(size + static_cast<std::size_t>(got));
  return got > 0;
}

}  // namespace tessera
