#pragma once
// Second stage: cuts the text into pieces that the model sees one by one.
#include <memory>
#include <string>
#include <vector>

#include "text/aligned_text.h"

namespace tessera::text {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Cuts every piece that is not an added token; empty pieces vanish.
  virtual void cut(Pieces& pieces) const = 0;
};
using PreTokenizerPtr = std::shared_ptr<const PreTokenizer>;

/// What becomes of the delimiters.
enum class Delimiters { kRemoved, kIsolated, kContiguous, kMergedWithPrevious, kMergedWithNext };
enum class PrependScheme { kAlways, kFirst, kNever };

struct MetaspaceOptions {
  char32_t replacement = 0x2581;  // stands for a space
  PrependScheme prepend = PrependScheme::kAlways;
  bool split = true;
};

PreTokenizerPtr make_metaspace(const MetaspaceOptions& options);
PreTokenizerPtr make_whitespace_split();
PreTokenizerPtr make_whitespace();  // words, runs of other signs; white space removed
PreTokenizerPtr make_punctuation(Delimiters behavior);
PreTokenizerPtr make_bert();  // white space removed, punctuation isolated
PreTokenizerPtr make_digits(bool individual);
PreTokenizerPtr make_fixed_length(std::size_t length);  // pieces of so many code points
/// Cut where the script changes; Hiragana and Katakana count as Han, spaces before the first letter vanish.
PreTokenizerPtr make_unicode_scripts();
PreTokenizerPtr make_char_delimiter(char32_t delimiter);
/// `invert`: the delimiters are what the expression does not match.
PreTokenizerPtr make_split(const std::string& pattern, Delimiters behavior, bool invert, const std::string& where);
PreTokenizerPtr make_sequence(std::vector<PreTokenizerPtr> parts);

}  // namespace tessera::text
