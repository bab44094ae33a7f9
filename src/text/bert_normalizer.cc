#include <algorithm>

#include "text/character_classes.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

bool is_cleaned_away(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  return c == 0 || c == 0xFFFD || has_class(c, kOther);
}

// The blocks of CJK unified and compatibility ideographs, as BERT lists them.
bool is_ideograph(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

class Clean final : public Normalizer {
 public:
  void normalize(AlignedText& text, std::int32_t) const override {
    std::erase_if(text, [](const AlignedChar& a) { return is_cleaned_away(a.c); });
    for (auto& a : text)
      if (is_whitespace(a.c)) a.c = ' ';
  }
};

class SpaceIdeographs final : public Normalizer {
 public:
  void normalize(AlignedText& text, std::int32_t) const override {
    if (std::none_of(text.begin(), text.end(), [](const AlignedChar& a) { return is_ideograph(a.c); })) return;
    AlignedText out;
    out.reserve(text.size() * 2);
    for (const auto& a : text) {
      const bool apart = is_ideograph(a.c);
      if (apart) out.push_back({' ', a.begin, a.end});
      out.push_back(a);
      if (apart) out.push_back({' ', a.begin, a.end});
    }
    text.swap(out);
  }
};

class StripNonspacing final : public Normalizer {
 public:
  void normalize(AlignedText& text, std::int32_t) const override {
    std::erase_if(text, [](const AlignedChar& a) { return has_class(a.c, kNonspacingMark); });
  }
};

class Nmt final : public Normalizer {
 public:
  void normalize(AlignedText& text, std::int32_t) const override {
    std::erase_if(text, [](const AlignedChar& a) { return vanishes(a.c); });
    for (auto& a : text)
      if (is_space(a.c)) a.c = ' ';
  }

 private:
  static bool vanishes(char32_t c) {
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  }
  static bool is_space(char32_t c) {
    return c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  }
};

}  // namespace

NormalizerPtr make_nmt() {
  return std::make_unique<Nmt>();
}

NormalizerPtr make_bert_normalizer(const BertNormalizerOptions& options) {
  std::vector<NormalizerPtr> parts;
  if (options.clean_text) parts.push_back(std::make_unique<Clean>());
  if (options.handle_chinese_chars) parts.push_back(std::make_unique<SpaceIdeographs>());
  if (options.strip_accents) {
    parts.push_back(make_unicode_form(UnicodeForm::kNfd));
    parts.push_back(std::make_unique<StripNonspacing>());
  }
  if (options.lowercase) parts.push_back(make_lowercase());
  return make_sequence(std::move(parts));
}

}  // namespace tessera::text
