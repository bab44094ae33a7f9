#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "text/character_classes.h"
#include "text/growth.h"
#include "text/normalizer.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<NormalizerPtr> parts) : parts_(std::move(parts)) {}
  void normalize(AlignedText& text, std::int32_t origin) const override {
    for (const auto& part : parts_) {
      part->normalize(text, origin);
      check_growth(text, text.size());
    }
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
      a.c = dotted_i ? U'i' : to_lower(a.c);
      out.push_back(a);
      if (dotted_i) out.push_back({0x307, a.begin, a.end});
    }
    text.swap(out);
  }
};

class StripAccents final : public Normalizer {
 public:
  void normalize(AlignedText& text, std::int32_t) const override {
    std::erase_if(text, [](const AlignedChar& a) { return has_class(a.c, kMark); });
  }
};

class Strip final : public Normalizer {
 public:
  explicit Strip(Ends ends) : ends_(ends) {}
  void normalize(AlignedText& text, std::int32_t) const override {
    const auto dark = [](const AlignedChar& a) { return !is_whitespace(a.c); };
    if (ends_ == Ends::kRight || ends_ == Ends::kBoth)
      text.erase(std::find_if(text.rbegin(), text.rend(), dark).base(), text.end());
    if (ends_ == Ends::kLeft || ends_ == Ends::kBoth)
      text.erase(text.begin(), std::find_if(text.begin(), text.end(), dark));
  }

 private:
  Ends ends_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(const std::string& prefix) : prefix_(to_utf32(prefix)) {}
  void normalize(AlignedText& text, std::int32_t origin) const override {
    if (text.empty()) return;
    if (prefix_.empty()) text[0] = {text[0].c, origin, origin};  // as upstream
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
  void normalize(AlignedText& text, std::int32_t origin) const override {
    const auto matches = regex_.find_all(text.data(), text.data() + text.size());
    if (matches.empty()) return;
    check_growth(text, matches.size() * content_.size());
    AlignedText out;
    std::size_t at = 0, byte = 0;  // the same place in `text` and in `utf8`
    for (const auto& [begin, end] : matches) {
      for (; byte < begin; byte += utf8_length(text[at++].c)) out.push_back(text[at]);
      for (; byte < end; byte += utf8_length(text[at++].c)) continue;
      for (char32_t c : content_)
        out.push_back(at > 0 ? AlignedChar{c, text[at - 1].begin, text[at - 1].end} : AlignedChar{c, origin, origin});
    }
    out.insert(out.end(), text.begin() + static_cast<std::ptrdiff_t>(at), text.end());
    text.swap(out);
  }

 private:
  Regex regex_;
  std::u32string content_;
};

class ReplaceSign final : public Normalizer {
 public:
  ReplaceSign(char32_t from, char32_t to) : from_(from), to_(to) {}
  void normalize(AlignedText& text, std::int32_t) const override {
    for (auto& a : text)
      if (a.c == from_) a.c = to_;
  }

 private:
  char32_t from_, to_;
};

}  // namespace

void check_growth(const AlignedText& text, std::size_t code_points) {
  const std::size_t bytes = text.empty() ? 0 : static_cast<std::size_t>(text.back().end);
  if (is_too_much(bytes, code_points))
    throw DataError(
        fmt::format("the tokenizer makes {} characters of a text of {} bytes; repair its file", code_points, bytes));
}

NormalizerPtr make_replace_sign(char32_t from, char32_t to) {
  return std::make_unique<ReplaceSign>(from, to);
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
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

}  // namespace tessera::text
