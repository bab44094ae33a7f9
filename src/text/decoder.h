#pragma once
// Tokens -> text.
#include <memory>
#include <string>
#include <vector>

namespace tessera::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Rewrites the tokens so that, joined, they are the text.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
};
using DecoderPtr = std::shared_ptr<const Decoder>;

/// U+2581 (or another sign) -> space; one at the start of the first token vanishes when `drop_first`.
DecoderPtr make_metaspace_decoder(char32_t replacement, bool drop_first);
/// `pattern`: a PCRE2 expression.
DecoderPtr make_replace_decoder(const std::string& pattern, const std::string& content, const std::string& where);
DecoderPtr make_literal_replace_decoder(const std::string& text, const std::string& content);  // `text` not empty
DecoderPtr make_fuse_decoder();                                                                // all tokens become one
/// Removes up to `start` of the signs at each token's start, `stop` at its end.
DecoderPtr make_strip_decoder(char32_t sign, std::size_t start, std::size_t stop);
DecoderPtr make_byte_fallback_decoder();  // runs of <0xAB> -> text; one U+FFFD for each byte of a run that is not UTF-8
/// BERT's: tokens are parted by spaces, but for those that start with `prefix`, which vanishes. `cleanup`: English
/// punctuation is closed up.
DecoderPtr make_word_piece_decoder(const std::string& prefix, bool cleanup);
DecoderPtr make_bpe_decoder(const std::string& suffix);  // the suffix that ends a word becomes a space
/// Repeated tokens become one, `pad` vanishes; `cleanup`: punctuation is closed up, `delimiter` becomes a space.
DecoderPtr make_ctc_decoder(const std::string& pad, const std::string& delimiter, bool cleanup);
DecoderPtr make_sequence(std::vector<DecoderPtr> parts);

std::size_t bytes_of(const std::vector<std::string>& tokens);
/// DataError where tokens of `from` bytes become `to`, which is too much (text/growth.h).
void check_decoded(std::size_t from, std::size_t to);

}  // namespace tessera::text
