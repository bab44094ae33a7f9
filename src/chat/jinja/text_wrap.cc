#include "chat/jinja/text_wrap.h"

#include <algorithm>
#include <utility>

#include "chat/jinja/merge_sort.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"
#include "chat/jinja/unicode.h"

namespace tessera::chat {
namespace {

bool blank(char32_t c) {
  return c == ' ' || (c >= 9 && c <= 13);
}

bool all_blank(std::u32string_view text) {
  return std::all_of(text.begin(), text.end(), is_space);
}

// \w of Python's expressions.
bool word(char32_t c) {
  return c == '_' || is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}

// Words and the blanks between them; a word may be cut behind a hyphen between letters.
class Chunks {
 public:
  Chunks(std::u32string_view text, bool hyphens) : all_(text), rest_(text), hyphens_(hyphens) {
    spend(kPropertyWork * static_cast<std::int64_t>(text.size()));
    find();
  }
  bool at_end() const { return rest_.empty(); }
  std::u32string_view front() const { return rest_.substr(0, size_); }
  /// Takes so much off the front, of the chunk there.
  std::u32string_view take(std::size_t count) {
    const auto out = rest_.substr(0, count);
    rest_.remove_prefix(count);
    size_ -= count;
    if (size_ == 0) find();
    return out;
  }
  /// Where a chunk that is too long is cut: behind the last hyphen of what there is room for, else at its end.
  std::size_t place_to_break(std::size_t room, bool hyphens) const {
    if (!hyphens) return room;
    const auto hyphen = front().substr(0, room).rfind(U'-');
    const bool word = hyphen != std::u32string_view::npos && hyphen > 0 &&
                      front().substr(0, hyphen).find_first_not_of(U'-') != std::u32string_view::npos;
    return word ? hyphen + 1 : room;
  }

 private:
  char32_t at(std::size_t i) const { return i < all_.size() ? all_[i] : U'\0'; }
  bool word_at(std::size_t i) const { return i < all_.size() && word(all_[i]); }
  bool letter_at(std::size_t i) const { return word_at(i) && !is_decimal(all_[i]); }
  bool punctuated_at(std::size_t i) const {
    return word_at(i) ||
           (i < all_.size() && std::u32string_view(U"!\"'&.,?").find(all_[i]) != std::u32string_view::npos);
  }
  // How many hyphens from `i` on are a dash between words; 0 for none.
  std::size_t dash(std::size_t i) const {
    if (i == 0 || !punctuated_at(i - 1)) return 0;
    std::size_t end = i;
    while (at(end) == '-') ++end;
    return end - i >= 2 && word_at(end) ? end - i : 0;
  }
  // Whether a word may be cut before `i`, behind a hyphen.
  bool cut_before(std::size_t i) const {
    const bool behind =
        i >= 3 && letter_at(i - 2) && (letter_at(i - 3) || (i >= 4 && at(i - 3) == '-' && letter_at(i - 4)));
    const bool between_punctuation = i >= 4 && punctuated_at(i - 2) && at(i - 3) == '-' && letter_at(i - 4);
    return at(i - 1) == '-' && (behind || between_punctuation) && letter_at(i) &&
           (letter_at(i + 1) || (at(i + 1) == '-' && letter_at(i + 2)));
  }

  // textwrap's wordsep_re.
  void find() {
    const std::size_t begin = all_.size() - rest_.size();
    std::size_t end = begin;
    if (begin < all_.size() && blank(all_[begin])) {
      while (end < all_.size() && blank(all_[end])) ++end;
    } else if (hyphens_ && dash(begin) > 0) {
      end += dash(begin);
    } else {
      while (end < all_.size() && !blank(all_[end])) {
        ++end;
        if (!hyphens_) continue;
        if (at(end) == '-' && cut_before(end + 1)) {
          ++end;
          break;
        }
        if (dash(end) > 0) break;
      }
    }
    size_ = end - begin;
  }

  std::u32string_view all_;
  std::u32string_view rest_;
  std::size_t size_ = 0;
  bool hyphens_;
};

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
  std::string take() { return out_.take(); }

 private:
  static std::vector<std::pair<Value, Value>> sorted(const Dict& dict) {
    auto items = dict.items();
    merge_sort(items, [](const auto& a, const auto& b) {
      try {
        return less(a.first, b.first);
      } catch (const TemplateError& e) {  // what has no order goes by the names of the types
        if (e.kind == ErrorKind::kLimit) throw;
        return type_name(a.first) < type_name(b.first);
      }
    });
    return items;
  }

  static std::string sorted_repr(const Value& value) {
    TextBuilder out;
    const auto add = [&](const std::string& piece, bool first) {
      if (!first) out += ", ";
      out += piece;
    };
    if (const auto* dict = value.get<DictPtr>()) {
      bool first = true;
      out += '{';
      for (const auto& [key, item] : sorted(**dict)) {
        add(sorted_repr(key), std::exchange(first, false));
        out += ": ";
        out += sorted_repr(item);
      }
      out += '}';
      return out.take();
    }
    if (!value.is<ListPtr>() && !value.is<TuplePtr>()) return repr(value);
    const auto items = iterate(value);
    out += value.is<ListPtr>() ? '[' : '(';
    for (std::size_t i = 0; i < items.size(); ++i) add(sorted_repr(items[i]), i == 0);
    out += value.is<ListPtr>() ? "]" : items.size() == 1 ? ",)" : ")";
    return out.take();
  }

  void next_line(std::size_t indent) {
    out_ += ",\n";
    out_.repeat(" ", static_cast<std::int64_t>(indent));
  }

  void write_dict(const Dict& dict, std::size_t indent, std::size_t allowance) {
    out_ += '{';
    const auto items = sorted(dict);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) next_line(indent + 1);
      const std::string key = sorted_repr(items[i].first);
      out_ += key;
      out_ += ": ";
      const auto size = static_cast<std::size_t>(count_points(key));
      write(items[i].second, indent + 1 + size + 2, i + 1 == items.size() ? allowance + 1 : 1);
    }
    out_ += '}';
  }

  TextBuilder out_;
};

}  // namespace

void wrap(const std::u32string& text, const WrapOptions& options, TextBuilder& out) {
  const auto width = static_cast<std::size_t>(options.width);
  Chunks chunks(text, options.break_on_hyphens);
  bool any_line = false;
  while (!chunks.at_end()) {
    if (any_line && all_blank(chunks.front())) chunks.take(chunks.front().size());
    std::vector<std::u32string_view> line;
    std::size_t size = 0;
    const auto take = [&](std::size_t count) {
      size += count;
      line.push_back(chunks.take(count));
    };
    while (!chunks.at_end() && size + chunks.front().size() <= width) take(chunks.front().size());
    if (!chunks.at_end() && chunks.front().size() > width) {
      if (options.break_long_words)
        take(chunks.place_to_break(width - size, options.break_on_hyphens));
      else if (line.empty())
        take(chunks.front().size());
    }
    // One piece of blanks goes from the end, even where nothing of a long word had room behind it.
    if (!line.empty() && all_blank(line.back())) line.pop_back();
    if (line.empty()) continue;
    if (std::exchange(any_line, true)) out += options.separator;
    for (const auto& piece : line) out += to_utf8(piece);
  }
}

std::string pretty(const Value& value) {
  Pretty printer;
  printer.write(value, 0, 0);
  return printer.take();
}

}  // namespace tessera::chat
