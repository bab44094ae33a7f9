#include "chat/jinja/text_search.h"

#include <cstring>
#include <string>

#include "chat/jinja/budget.h"

namespace tessera::chat {

std::size_t find_first(std::string_view text, std::string_view wanted, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  text.remove_prefix(from);
  const auto* found = static_cast<const char*>(memmem(text.data(), text.size(), wanted.data(), wanted.size()));
  const std::size_t at = found == nullptr ? std::string_view::npos : static_cast<std::size_t>(found - text.data());
  constexpr std::int64_t kCallWork = 20;
  spend(kCallWork + static_cast<std::int64_t>(found == nullptr ? text.size() : at) / 4 +
        static_cast<std::int64_t>(wanted.size()));
  return found == nullptr ? at : at + from;
}

std::size_t find_last(std::string_view text, std::string_view wanted) {
  require_memory(static_cast<std::int64_t>(text.size() + wanted.size()));
  spend(static_cast<std::int64_t>(text.size()));
  const std::string backwards(text.rbegin(), text.rend()), wanted_backwards(wanted.rbegin(), wanted.rend());
  const std::size_t at = find_first(backwards, wanted_backwards);
  return at == std::string_view::npos ? at : text.size() - at - wanted.size();
}

}  // namespace tessera::chat
