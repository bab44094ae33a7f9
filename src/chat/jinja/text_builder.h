#pragma once
// Texts that are put together of pieces: what is added is charged before it is there.
#include <string>
#include <string_view>

#include "chat/jinja/budget.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {

class TextBuilder {
 public:
  TextBuilder() = default;
  TextBuilder(TextBuilder&&) noexcept = default;

  TextBuilder& operator+=(std::string_view piece) {
    charge(static_cast<std::int64_t>(piece.size()));
    text_ += piece;
    return *this;
  }
  TextBuilder& operator+=(char c) {
    charge(1);
    text_ += c;
    return *this;
  }
  TextBuilder& operator+=(char32_t point) {
    charge(4);
    append_utf8(point, text_);
    return *this;
  }
  /// `piece` that many times; none where `count` is negative.
  void repeat(std::string_view piece, std::int64_t count);

  bool empty() const { return text_.empty(); }
  std::size_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }
  std::string take() {
    held_ = Held();
    return std::move(text_);
  }

 private:
  void charge(std::int64_t bytes) {
    spend(bytes);
    held_.add(bytes);
  }

  std::string text_;
  Held held_;
};

}  // namespace tessera::chat
