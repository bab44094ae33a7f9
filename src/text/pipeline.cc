#include "text/pipeline.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/pad.h"
#include "text/save.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

using Offsets = std::pair<std::int32_t, std::int32_t>;

bool is_space_sign(char32_t c) {
  return c == byte_to_sign(' ') || is_whitespace(c);
}

// Takes the white space at the ends of a token out of its offsets, as ByteLevel's post-processor does.
template <class At>
void trim(Offsets& offsets, std::int32_t length, At at, bool may_be_prefix) {
  std::int32_t leading = 0, trailing = 0;
  while (leading < length && is_space_sign(at(leading))) ++leading;
  while (trailing < length && is_space_sign(at(length - 1 - trailing))) ++trailing;
  if (leading == 1 && may_be_prefix) leading = 0;
  offsets.first = std::min(offsets.first + leading, offsets.second);
  if (trailing > 0 && offsets.second >= trailing) offsets.second = std::max(offsets.second - trailing, offsets.first);
}

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(Pipeline pipeline) : p_(std::move(pipeline)) {}

  using Tokenizer::decode;
  using Tokenizer::encode;
  Encoding encode(std::string_view text, const EncodeOptions& options) const override {
    return finish(tokenize(text), nullptr, options);
  }

  Encoding encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options) const override {
    auto b = tokenize(second);
    return finish(tokenize(first), &b, options);
  }

  std::string decode(const std::vector<std::int32_t>& ids, bool skip_special_tokens) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (auto id : ids) {
      if (!p_.added_tokens.find(id) && !is_token(id)) continue;
      auto token = id_to_token(id);
      // By its text, as upstream: of equal pieces of a vocabulary only one has the special token's id.
      const auto* added = skip_special_tokens ? p_.added_tokens.find(token) : nullptr;
      if (!added || !added->special) tokens.push_back(std::move(token));
    }
    if (p_.decoder && !tokens.empty()) p_.decoder->decode(tokens);
    std::string out;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && !p_.decoder) out += ' ';
      out += tokens[i];
    }
    return out;
  }

  std::int64_t vocab_size() const override {
    return std::max<std::int64_t>(p_.model->size(), std::int64_t{p_.added_tokens.max_id()} + 1);
  }
  std::int32_t token_to_id(std::string_view token) const override {
    const auto* added = p_.added_tokens.find(token);
    return added ? added->id : p_.model->find(token);
  }
  std::string id_to_token(std::int32_t id) const override {
    if (const auto* added = p_.added_tokens.find(id)) return added->content;
    return id >= 0 && id < p_.model->size() ? p_.model->token(id) : std::string();
  }
  bool is_special(std::int32_t id) const override {
    const auto* added = p_.added_tokens.find(id);
    return added && added->special;
  }
  const SpecialTokens& special_tokens() const override { return p_.special; }
  const std::vector<AddedToken>& added_tokens() const override { return p_.added_tokens.tokens(); }
  const std::map<std::string, std::string>& chat_templates() const override { return p_.chat_templates; }
  bool clean_up_tokenization_spaces() const override { return p_.clean_up_tokenization_spaces; }
  bool gives_type_ids() const override { return p_.gives_type_ids; }

  std::shared_ptr<const Tokenizer> with(const TokenizerChanges& changes) const override {
    auto pipeline = p_;
    if (changes.added_tokens_of) add_tokens_of(*changes.added_tokens_of, pipeline);
    apply_special_tokens(changes.special, pipeline);
    if (changes.chat_template) pipeline.chat_templates = {{"default", *changes.chat_template}};
    return make_tokenizer(std::move(pipeline));
  }
  std::string definition() const override { return p_.source ? tokenizer_json(p_) : std::string(); }
  void save(const std::string& folder) const override { save_pipeline(p_, folder); }

 private:
  Encoding tokenize(std::string_view text) const {
    auto pieces = p_.added_tokens.extract(align(text), p_.normalizer.get());
    if (p_.pre_tokenizer) p_.pre_tokenizer->cut(pieces);
    Encoding out;
    out.ids.reserve(pieces.text.size() / 4 + 8);
    out.offsets.reserve(pieces.text.size() / 4 + 8);
    std::string utf8;
    std::vector<ModelToken> tokens;
    for (const auto& piece : pieces.list) {
      const auto* signs = pieces.text.data() + piece.begin;
      const auto length = piece.end - piece.begin;
      if (piece.token >= 0) {
        out.ids.push_back(piece.token);
        out.offsets.emplace_back(signs[0].begin, signs[length - 1].end);
        trim_text(signs, length, out);
        continue;
      }
      utf8.clear();
      tokens.clear();
      for (std::size_t i = 0; i < length; ++i) append_utf8(signs[i].c, utf8);
      p_.model->tokenize(utf8, tokens);
      append(signs, length, tokens, out);
    }
    return out;
  }

  /// Vocabularies may have holes, which stand for no text; the empty token is one.
  bool is_token(std::int32_t id) const {
    return id >= 0 && id < p_.model->size() && (!p_.model->token(id).empty() || p_.model->find("") == id);
  }

  // The model counts bytes of the piece; tokens begin in order, so one walk over the piece finds the code points.
  void append(const AlignedChar* signs, std::size_t length, const std::vector<ModelToken>& tokens,
              Encoding& out) const {
    std::size_t at = 0, at_end = utf8_size(signs[0].c);  // a code point, and the byte after it
    for (const auto& token : tokens) {
      while (at_end <= token.begin && at + 1 < length) at_end += utf8_size(signs[++at].c);
      auto last = at, last_end = at_end;
      while (last_end < token.end && last + 1 < length) last_end += utf8_size(signs[++last].c);
      out.ids.push_back(token.id);
      out.offsets.emplace_back(signs[at].begin, signs[last].end);
      if (token.id == p_.model->unk_id() && p_.model->keeps_unknown_text())
        trim_text(signs + at, last - at + 1, out);
      else
        trim_token(token.id, out);
    }
  }

  static std::size_t utf8_size(char32_t c) { return static_cast<std::size_t>(utf8_length(c)); }

  // The last token's offsets; `at` gives its signs.
  template <class At>
  void trim_last(std::size_t length, At at, Encoding& out) const {
    auto& offsets = out.offsets.back();
    for (const auto& part : p_.post_processor.trims)
      trim(offsets, static_cast<std::int32_t>(length), at,
           part.add_prefix_space && (out.offsets.size() == 1 || offsets.first == 0));
  }

  void trim_token(std::int32_t id, Encoding& out) const {
    if (p_.post_processor.trims.empty()) return;
    const auto& token = p_.model->token(id);
    const auto inner = [](char c) { return (c >= '!' && c <= '~'); };
    if (!token.empty() && inner(token.front()) && inner(token.back())) return;
    const auto text = to_utf32(token);
    trim_last(text.size(), [&](std::int32_t i) { return text[static_cast<std::size_t>(i)]; }, out);
  }

  void trim_text(const AlignedChar* signs, std::size_t length, Encoding& out) const {
    trim_last(length, [&](std::int32_t i) { return signs[i].c; }, out);
  }

  Encoding finish(Encoding first, Encoding* second, const EncodeOptions& options) const {
    if (options.max_length > 0) {
      const auto added = options.add_special_tokens ? p_.post_processor.added(second != nullptr) : 0;
      truncate(first, second, options.max_length - added, options.truncation,
               options.truncation_side.value_or(p_.truncation_side));
    }
    return p_.post_processor.apply(first, second, options.add_special_tokens);
  }

  Pipeline p_;
};

}  // namespace

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids, const DecodeOptions& options) const {
  auto text = decode(ids, options.skip_special_tokens);
  const bool clean = options.clean_up_tokenization_spaces.value_or(clean_up_tokenization_spaces());
  return clean ? text::clean_up_tokenization_spaces(std::move(text)) : text;
}

std::shared_ptr<const Tokenizer> make_tokenizer(Pipeline pipeline) {
  return std::make_shared<PipelineTokenizer>(std::move(pipeline));
}

}  // namespace tessera::text
