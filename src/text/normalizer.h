#pragma once
// First stage: rewrites the text (compatibility forms, case, white space).
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/aligned_text.h"

namespace tessera::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// `origin`: where the text starts in the input.
  virtual void normalize(AlignedText& text, std::int32_t origin) const = 0;
};
using NormalizerPtr = std::shared_ptr<const Normalizer>;

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
enum class Ends { kLeft, kRight, kBoth, kNone };

/// SentencePiece's precompiled character map (a double-array trie and the replacements it points to). DataError when
/// damaged; `where` begins the message.
NormalizerPtr make_precompiled(std::string_view charsmap, const std::string& where);
NormalizerPtr make_unicode_form(UnicodeForm form);
NormalizerPtr make_lowercase();
NormalizerPtr make_strip_accents();
NormalizerPtr make_strip(Ends ends);
NormalizerPtr make_prepend(const std::string& prefix);
/// `pattern`: a PCRE2 expression.
NormalizerPtr make_replace(const std::string& pattern, const std::string& content, const std::string& where);
/// SentencePiece's rule for machine translation: control characters vanish, other white space becomes a space.
NormalizerPtr make_nmt();

struct BertNormalizerOptions {
  bool clean_text = true;            // control characters vanish, white space becomes a space
  bool handle_chinese_chars = true;  // spaces around each ideograph
  bool strip_accents = true;
  bool lowercase = true;
};
NormalizerPtr make_bert_normalizer(const BertNormalizerOptions& options);
NormalizerPtr make_replace_sign(char32_t from, char32_t to);
NormalizerPtr make_sequence(std::vector<NormalizerPtr> parts);

/// DataError where `text` would become so many code points, which is too much (text/growth.h).
void check_growth(const AlignedText& text, std::size_t code_points);

}  // namespace tessera::text
