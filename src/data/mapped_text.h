#pragma once
#include <string>
#include <string_view>

#include "io/mapped_file.h"

namespace tessera::data {

/// What rows are read from, for the message about a file that changed meanwhile.
inline constexpr const char* kRowsInPlace =
    "Rows are read where they lie in it: let nobody write to it, or put other rows in its place by renaming, and start "
    "again";

/// A whole file of text, mapped without its byte order mark; of a compressed one what it unpacks to (unpack.h).
class MappedText {
 public:
  /// DataError when it is not a readable regular file.
  explicit MappedText(const std::string& file);
  const std::string& name() const { return name_; }
  std::string_view text() const { return text_; }
  /// io::MappedFile's
  template <class Action>
  auto read(const Action& action) const {
    return file_.read(action);
  }

 private:
  std::string name_;
  io::MappedFile file_;
  std::string_view text_;
};

}  // namespace tessera::data
