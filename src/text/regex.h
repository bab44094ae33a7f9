#pragma once
// A compiled PCRE2 expression (UTF, Unicode properties, JIT). Thread-safe.
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/aligned_text.h"

namespace tessera::text {

class Regex {
 public:
  /// DataError when the expression does not compile; `where` begins the message.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  /// Byte ranges (of the text in UTF-8) of all matches, in order: empty ones too, but not right behind another match,
  /// and none in an empty text (as Rust's onig crate iterates, which upstream's tokenizers use).
  std::vector<std::pair<std::size_t, std::size_t>> find_all(const AlignedChar* begin, const AlignedChar* end) const;
  std::vector<std::pair<std::size_t, std::size_t>> find_all(std::string_view utf8) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A text taken literally, as an expression.
std::string quote_regex(const std::string& text);

}  // namespace tessera::text
