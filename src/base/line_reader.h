#pragma once
// Lines of a pipe or file, as they arrive.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/row_limit.h"

namespace tessera {

class LineReader {
 public:
  /// `name`: of the input, in messages. `before_wait` is called before each read, which may wait for the other end of a
  /// pipe: flush what was said so far.
  LineReader(
      int descriptor, std::string name, std::function<void()> before_wait = [] {},
      std::size_t max_line_bytes = kMaxRowBytes);

  /// The next line without its end, valid until the next call; false at the end. DataError when reading fails or a line
  /// is longer than the limit: of it no more than the limit and a block is read.
  bool next(std::string_view& line);
  std::int64_t number() const { return number_; }  // of the last line, from 1

 private:
  bool fill();

  int descriptor_;
  std::string name_;
  std::function<void()> before_wait_;
  std::size_t max_line_bytes_;
  std::string buffer_;
  std::size_t begin_ = 0, searched_ = 0;
  bool ended_ = false;
  std::int64_t number_ = 0;
};

}  // namespace tessera
