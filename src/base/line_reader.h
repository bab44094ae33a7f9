#pragma once
// Lines of a pipe or file, as they arrive.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tessera {

class LineReader {
 public:
  /// `before_wait` is called before each read, which may wait for the other end of a pipe: flush what was said so far.
  LineReader(int descriptor, std::function<void()> before_wait);

  /// The next line without its end, valid until the next call; false at the end. DataError when reading fails.
  bool next(std::string_view& line);
  std::int64_t number() const { return number_; }  // of the last line, from 1

 private:
  bool fill();

  int descriptor_;
  std::function<void()> before_wait_;
  std::string buffer_;
  std::size_t begin_ = 0, searched_ = 0;
  bool ended_ = false;
  std::int64_t number_ = 0;
};

}  // namespace tessera
