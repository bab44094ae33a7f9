#include "chat/jinja/text_builder.h"

#include <limits>

namespace tessera::chat {

void TextBuilder::repeat(std::string_view piece, std::int64_t count) {
  if (count <= 0 || piece.empty()) return;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::int64_t>(piece.size()), count, &bytes))
    bytes = std::numeric_limits<std::int64_t>::max();
  charge(bytes);
  text_.reserve(text_.size() + static_cast<std::size_t>(bytes));
  for (; count > 0; --count) text_ += piece;
}

}  // namespace tessera::chat
