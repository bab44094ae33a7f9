#include "chat/text_wrap.h"

#include <algorithm>

#include "chat/merge_sort.h"
#include "chat/repr.h"
#include "chat/unicode.h"

namespace tessera::chat {
namespace {

bool blank(char32_t c) {
  return c == ' ' || (c >= 9 && c <= 13);
}

bool letter(char32_t c) {
  return is_alpha(c) || c == '_';
}

// Words and the blanks between them; a word may be cut behind a hyphen between letters.
std::vector<std::u32string> chunks_of(const std::u32string& text, bool hyphens) {
  std::vector<std::u32string> out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    if (blank(text[at])) {
      while (end < text.size() && blank(text[end])) ++end;
    } else {
      while (end < text.size() && !blank(text[end])) {
        ++end;
        const bool cut = hyphens && text[end - 1] == '-' && end >= at + 3 && letter(text[end - 2]) &&
                         letter(text[end - 3]) && end + 1 < text.size() && letter(text[end]) && letter(text[end + 1]);
        if (cut) break;
      }
    }
    out.push_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

class Pretty {
 public:
  void write(const Value& value, std::size_t indent, std::size_t allowance) {
    const std::string flat = sorted_repr(value);
    const std::size_t room = indent + allowance < 80 ? 80 - indent - allowance : 0;
    const bool container = value.is<DictPtr>() || value.is<ListPtr>() || value.is<TuplePtr>();
    if (!container || static_cast<std::size_t>(count_points(flat)) <= room) {
      out_ += flat;
    } else if (const auto* dict = value.get<DictPtr>()) {
      write_dict(**dict, indent, allowance);
    } else {
      const bool list = value.is<ListPtr>();
      const auto items = iterate(value);
      out_ += list ? '[' : '(';
      const std::string close = list ? "]" : items.size() == 1 ? ",)" : ")";
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) next_line(indent + 1);
        write(items[i], indent + 1, i + 1 == items.size() ? allowance + close.size() : 1);
      }
      out_ += close;
    }
  }
  std::string take() { return std::move(out_); }

 private:
  static std::vector<std::pair<Value, Value>> sorted(const Dict& dict) {
    auto items = dict.items();
    merge_sort(items, [](const auto& a, const auto& b) {
      const bool texts = a.first.is_text() && b.first.is_text();
      return texts ? a.first.text() < b.first.text() : repr(a.first) < repr(b.first);
    });
    return items;
  }

  static std::string sorted_repr(const Value& value) {
    std::string out;
    if (const auto* dict = value.get<DictPtr>()) {
      for (const auto& [key, item] : sorted(**dict))
        out += (out.empty() ? "" : ", ") + sorted_repr(key) + ": " + sorted_repr(item);
      return "{" + out + "}";
    }
    if (!value.is<ListPtr>() && !value.is<TuplePtr>()) return repr(value);
    const auto items = iterate(value);
    for (std::size_t i = 0; i < items.size(); ++i) out += (i > 0 ? ", " : "") + sorted_repr(items[i]);
    return value.is<ListPtr>() ? "[" + out + "]" : "(" + out + (items.size() == 1 ? ",)" : ")");
  }

  void next_line(std::size_t indent) { out_ += ",\n" + std::string(indent, ' '); }

  void write_dict(const Dict& dict, std::size_t indent, std::size_t allowance) {
    out_ += '{';
    const auto items = sorted(dict);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) next_line(indent + 1);
      const std::string key = sorted_repr(items[i].first);
      out_ += key + ": ";
      const auto size = static_cast<std::size_t>(count_points(key));
      write(items[i].second, indent + 1 + size + 2, i + 1 == items.size() ? allowance + 1 : 1);
    }
    out_ += '}';
  }

  std::string out_;
};

}  // namespace

std::vector<std::u32string> wrap(const std::u32string& text, const WrapOptions& options) {
  auto chunks = chunks_of(text, options.break_on_hyphens);
  std::reverse(chunks.begin(), chunks.end());
  const auto width = static_cast<std::size_t>(options.width);
  std::vector<std::u32string> lines;
  while (!chunks.empty()) {
    std::vector<std::u32string> line;
    std::size_t size = 0;
    if (!lines.empty() && blank(chunks.back().front())) chunks.pop_back();
    while (!chunks.empty() && size + chunks.back().size() <= width) {
      size += chunks.back().size();
      line.push_back(std::move(chunks.back()));
      chunks.pop_back();
    }
    if (!chunks.empty() && chunks.back().size() > width) {
      const std::size_t room = width - size;
      if (options.break_long_words && room > 0) {
        line.push_back(chunks.back().substr(0, room));
        chunks.back() = chunks.back().substr(room);
      } else if (line.empty()) {
        line.push_back(std::move(chunks.back()));
        chunks.pop_back();
      }
    }
    if (!line.empty() && blank(line.back().front())) line.pop_back();
    std::u32string joined;
    for (const auto& chunk : line) joined += chunk;
    if (!line.empty()) lines.push_back(std::move(joined));
  }
  return lines;
}

std::string pretty(const Value& value) {
  Pretty printer;
  printer.write(value, 0, 0);
  return printer.take();
}

}  // namespace tessera::chat
