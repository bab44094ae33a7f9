// The methods of strings that ask: predicates, searching.
#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/bound_arguments.h"
#include "chat/jinja/methods.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/text_search.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

std::u32string points_of(const Value& self, Arguments arguments) {
  const BoundArguments none("method", std::move(arguments), {});
  auto points = to_points(self.text());
  spend(kPropertyWork * static_cast<std::int64_t>(points.size()));
  return points;
}

// All characters satisfy it, and there is one.
template <bool (*is)(char32_t)>
Value all_are(Runtime&, const Value& self, Arguments arguments) {
  const auto points = points_of(self, std::move(arguments));
  return !points.empty() && std::all_of(points.begin(), points.end(), is);
}

bool is_alnum(char32_t c) {
  return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}

Value is_lower_text(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("islower", std::move(arguments), {});
  return is_cased_as(self.text(), is_lower, is_upper);
}

Value is_upper_text(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("isupper", std::move(arguments), {});
  return is_cased_as(self.text(), is_upper, is_lower);
}

Value is_title_text(Runtime&, const Value& self, Arguments arguments) {
  bool inside = false, any = false;
  for (char32_t c : points_of(self, std::move(arguments))) {
    const bool high = is_upper(c) || is_title(c), low = is_lower(c);
    if ((high && inside) || (low && !inside)) return false;
    inside = high || low;
    any = any || inside;
  }
  return any;
}

Value is_ascii_text(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments none("isascii", std::move(arguments), {});
  return (*self.get<TextPtr>())->ascii;
}

Value is_printable_text(Runtime&, const Value& self, Arguments arguments) {
  const auto points = points_of(self, std::move(arguments));
  return std::all_of(points.begin(), points.end(), is_printable);
}

Value is_identifier(Runtime&, const Value& self, Arguments arguments) {
  const auto points = points_of(self, std::move(arguments));
  return !points.empty() && is_identifier_start(points[0]) &&
         std::all_of(points.begin(), points.end(), is_identifier_part);
}

// Code points and the bytes that they take, in one text.
class Places {
 public:
  explicit Places(const Text& text) : text_(text.utf8), ascii_(text.ascii) {}
  std::int64_t size() const { return points_before(text_.size()); }
  std::size_t byte_of(std::int64_t point) const {
    if (ascii_) return static_cast<std::size_t>(point);
    spend(point);
    std::size_t at = 0;
    for (; point > 0; --point) do
        ++at;
      while (at < text_.size() && is_continuation(text_[at]));
    return at;
  }
  std::int64_t points_before(std::size_t byte) const {
    if (ascii_) return static_cast<std::int64_t>(byte);
    spend(static_cast<std::int64_t>(byte) / 2);
    return count_points(text_.substr(0, byte));
  }

 private:
  std::string_view text_;
  bool ascii_;
};

// The part of the text that optional start and end choose, and where it begins, in bytes; none where start lies behind
// the end.
struct Window {
  std::string_view text;
  std::size_t offset;
};
std::optional<Window> window(const Value& self, const BoundArguments& bound) {
  const Places places(**self.get<TextPtr>());
  const auto size = places.size();
  const auto at = [&](std::size_t i, std::int64_t otherwise) {
    return bound[i].is_none() ? otherwise : std::max<std::int64_t>(slice_bound(bound[i], size), 0);
  };
  const auto begin = at(1, 0), end = std::min(at(2, size), size);
  if (begin > end) return std::nullopt;
  const auto offset = places.byte_of(begin);
  return Window{std::string_view(self.text()).substr(offset, places.byte_of(end) - offset), offset};
}

template <bool prefix>
Value starts_or_ends(Runtime&, const Value& self, Arguments arguments) {
  const char* name = prefix ? "startswith" : "endswith";
  const BoundArguments bound(name, std::move(arguments), {"", "", ""}, 1);
  const auto found = window(self, bound);
  require_defined(bound[0]);
  const auto matches = [&](const Value& choice) {
    const auto& affix = required_text(choice, name);
    spend(static_cast<std::int64_t>(affix.size()) / 8 + 1);
    return found && (prefix ? found->text.starts_with(affix) : found->text.ends_with(affix));
  };
  const auto* tuple = bound[0].get<TuplePtr>();
  if (tuple == nullptr) return matches(bound[0]);
  return std::any_of((*tuple)->items.begin(), (*tuple)->items.end(), matches);
}

template <bool last, bool must>
Value find(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("find", std::move(arguments), {"", "", ""}, 1);
  const auto& wanted = required_text(bound[0], "find");
  const auto in = window(self, bound);
  const auto at = !in ? std::string_view::npos : last ? find_last(in->text, wanted) : find_first(in->text, wanted);
  if (at != std::string_view::npos) return Places(**self.get<TextPtr>()).points_before(at + in->offset);
  if (must) value_error("substring not found");
  return std::int64_t{-1};
}

Value count(Runtime&, const Value& self, Arguments arguments) {
  const BoundArguments bound("count", std::move(arguments), {"", "", ""}, 1);
  const auto& wanted = required_text(bound[0], "count");
  const auto in = window(self, bound);
  if (!in) return std::int64_t{0};
  if (wanted.empty()) return count_points(in->text) + 1;
  std::int64_t found = 0;
  for (auto at = find_first(in->text, wanted); at != std::string_view::npos;
       at = find_first(in->text, wanted, at + wanted.size()))
    ++found;
  return found;
}

}  // namespace

const std::vector<MethodEntry>& text_queries() {
  static const std::vector<MethodEntry> table{
      {"count", count},
      {"endswith", starts_or_ends<false>},
      {"find", find<false, false>},
      {"index", find<false, true>},
      {"isalnum", all_are<is_alnum>},
      {"isalpha", all_are<is_alpha>},
      {"isascii", is_ascii_text},
      {"isdecimal", all_are<is_decimal>},
      {"isdigit", all_are<is_digit>},
      {"isidentifier", is_identifier},
      {"islower", is_lower_text},
      {"isnumeric", all_are<is_numeric>},
      {"isprintable", is_printable_text},
      {"isspace", all_are<is_space>},
      {"istitle", is_title_text},
      {"isupper", is_upper_text},
      {"rfind", find<true, false>},
      {"rindex", find<true, true>},
      {"startswith", starts_or_ends<true>},
  };
  return table;
}

}  // namespace tessera::chat
