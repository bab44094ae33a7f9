#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "text/normalizer.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

class Sequence final : public Normalizer {
 public:
  explicit Sequence(std::vector<NormalizerPtr> parts) : parts_(std::move(parts)) {}
  void normalize(AlignedText& text, std::int32_t origin) const override {
    for (const auto& part : parts_) part->normalize(text, origin);
  }

 private:
  std::vector<NormalizerPtr> parts_;
};

class Lowercase final : public Normalizer {
 public:
  void normalize(AlignedText& text, std::int32_t) const override {
    AlignedText out;
    out.reserve(text.size());
    for (auto a : text) {
      const bool dotted_i = a.c == 0x130;  // the one code point whose lower case is two
      a.c = dotted_i ? U'i' : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(a.c)));
      out.push_back(a);
      if (dotted_i) out.push_back({0x307, a.begin, a.end});
    }
    text.swap(out);
  }
};

class StripAccents final : public Normalizer {
 public:
  void normalize(AlignedText& text, std::int32_t) const override {
    std::erase_if(text, [](const AlignedChar& a) { return is_nonspacing_mark(a.c); });
  }
};

class Strip final : public Normalizer {
 public:
  explicit Strip(Ends ends) : ends_(ends) {}
  void normalize(AlignedText& text, std::int32_t) const override {
    const auto dark = [](const AlignedChar& a) { return !is_whitespace(a.c); };
    if (ends_ != Ends::kLeft) text.erase(std::find_if(text.rbegin(), text.rend(), dark).base(), text.end());
    if (ends_ != Ends::kRight) text.erase(text.begin(), std::find_if(text.begin(), text.end(), dark));
  }

 private:
  Ends ends_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(const std::string& prefix) : prefix_(to_utf32(prefix)) {}
  void normalize(AlignedText& text, std::int32_t) const override {
    if (text.empty()) return;
    AlignedText out;
    for (char32_t c : prefix_) out.push_back({c, text[0].begin, text[0].end});
    text.insert(text.begin(), out.begin(), out.end());
  }

 private:
  std::u32string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(const std::string& pattern, const std::string& content, const std::string& where)
      : regex_(pattern, where), content_(to_utf32(content)) {}
  void normalize(AlignedText& text, std::int32_t) const override {
    const auto utf8 = to_utf8(text.data(), text.data() + text.size());
    const auto matches = regex_.find_all(utf8);
    if (matches.empty()) return;
    AlignedText out;
    std::size_t at = 0, byte = 0;  // the same place in `text` and in `utf8`
    for (const auto& [begin, end] : matches) {
      for (; byte < begin; byte += utf8_length(text[at++].c)) out.push_back(text[at]);
      for (; byte < end; byte += utf8_length(text[at++].c)) continue;
      for (char32_t c : content_) out.push_back({c, text[at - 1].begin, text[at - 1].end});
    }
    out.insert(out.end(), text.begin() + static_cast<std::ptrdiff_t>(at), text.end());
    text.swap(out);
  }

 private:
  Regex regex_;
  std::u32string content_;
};

class Form final : public Normalizer {
 public:
  explicit Form(UnicodeForm form) {
    const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
    const bool compat = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
    options_ = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                              (compat ? UTF8PROC_COMPAT : 0));
  }
  void normalize(AlignedText& text, std::int32_t origin) const override {
    if (std::all_of(text.begin(), text.end(), [](const AlignedChar& a) { return a.c < 0x80; })) return;
    std::vector<Rewrite> rewrites;
    for (std::size_t begin = 0; begin < text.size();) {
      auto end = begin + 1;
      while (end < text.size() && joins(text[end].c)) ++end;
      replace_run(end - begin, convert(to_utf8(text.data() + begin, text.data() + end)), rewrites);
      begin = end;
    }
    AlignedText out;
    rewrite(text.data(), text.data() + text.size(), 0, rewrites, origin, out);
    text.swap(out);
  }

 private:
  // What a form may move or join to the code point before it: marks, and the vowels and final consonants of Hangul.
  static bool joins(char32_t c) { return c >= 0x300 && (is_mark(c) || (c >= 0x1160 && c <= 0x11FF)); }

  std::u32string convert(const std::string& utf8) const {
    utf8proc_uint8_t* made = nullptr;
    const auto size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(utf8.data()),
                                   static_cast<utf8proc_ssize_t>(utf8.size()), &made, options_);
    if (size < 0) return to_utf32(utf8);
    auto out = to_utf32({reinterpret_cast<const char*>(made), static_cast<std::size_t>(size)});
    std::free(made);
    return out;
  }

  utf8proc_option_t options_;
};

}  // namespace

NormalizerPtr make_unicode_form(UnicodeForm form) {
  return std::make_unique<Form>(form);
}
NormalizerPtr make_lowercase() {
  return std::make_unique<Lowercase>();
}
NormalizerPtr make_strip_accents() {
  return std::make_unique<StripAccents>();
}
NormalizerPtr make_strip(Ends ends) {
  return std::make_unique<Strip>(ends);
}
NormalizerPtr make_prepend(const std::string& prefix) {
  return std::make_unique<Prepend>(prefix);
}
NormalizerPtr make_replace(const std::string& pattern, const std::string& content, const std::string& where) {
  return std::make_unique<Replace>(pattern, content, where);
}
NormalizerPtr make_sequence(std::vector<NormalizerPtr> parts) {
  return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace tessera::text
