#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::data {

/// A whole file, mapped without its byte order mark; the kernel brings in and drops its pages.
class MappedText {
 public:
  /// DataError when it is not a readable regular file.
  explicit MappedText(const std::string& file);
  const std::string& name() const { return name_; }
  std::string_view text() const { return text_; }

 private:
  std::string name_;
  std::shared_ptr<std::byte> bytes_;
  std::string_view text_;
};

}  // namespace tessera::data
