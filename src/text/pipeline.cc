#include "text/pipeline.h"

#include <algorithm>

#include "text/unicode.h"

namespace tessera::text {
namespace {

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(Pipeline pipeline) : p_(std::move(pipeline)) {
    pad_ = id_of(p_.special.pad);
    eos_ = id_of(p_.special.eos);
    bos_ = id_of(p_.special.bos);
    unk_ = id_of(p_.special.unk);
    if (unk_ < 0) unk_ = p_.model->unk_id();
  }

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
    for (auto id : ids) {
      const auto* added = p_.added_tokens.find(id);
      if (added && added->special && skip_special_tokens) continue;
      if (added || (id >= 0 && id < p_.model->size())) tokens.push_back(id_to_token(id));
    }
    if (p_.decoder) p_.decoder->decode(tokens);
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
  std::int32_t pad_id() const override { return pad_; }
  std::int32_t eos_id() const override { return eos_; }
  std::int32_t bos_id() const override { return bos_; }
  std::int32_t unk_id() const override { return unk_; }

 private:
  std::int32_t id_of(const std::string& token) const { return token.empty() ? -1 : token_to_id(token); }

  Encoding tokenize(std::string_view text) const {
    auto pieces = p_.added_tokens.extract(align(text), p_.normalizer.get());
    if (p_.pre_tokenizer) p_.pre_tokenizer->cut(pieces);
    Encoding out;
    std::string utf8;
    std::vector<std::size_t> owner;  // byte of utf8 -> index in pieces.text
    std::vector<ModelToken> tokens;
    for (const auto& piece : pieces.list) {
      if (piece.token >= 0) {
        out.ids.push_back(piece.token);
        out.offsets.emplace_back(pieces.text[piece.begin].begin, pieces.text[piece.end - 1].end);
        continue;
      }
      utf8.clear();
      owner.clear();
      tokens.clear();
      for (auto i = piece.begin; i < piece.end; ++i) {
        append_utf8(pieces.text[i].c, utf8);
        owner.resize(utf8.size(), i);
      }
      p_.model->tokenize(utf8, tokens);
      for (const auto& token : tokens) {
        out.ids.push_back(token.id);
        out.offsets.emplace_back(pieces.text[owner[token.begin]].begin, pieces.text[owner[token.end - 1]].end);
      }
    }
    return out;
  }

  Encoding finish(Encoding first, Encoding* second, const EncodeOptions& options) const {
    if (options.max_length > 0) {
      const auto added = options.add_special_tokens ? p_.post_processor.added(second != nullptr) : 0;
      truncate(first, second, options.max_length - added, options.truncation, options.truncation_side);
    }
    return p_.post_processor.apply(std::move(first), second, options.add_special_tokens);
  }

  Pipeline p_;
  std::int32_t pad_ = -1, eos_ = -1, bos_ = -1, unk_ = -1;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer(Pipeline pipeline) {
  return std::make_shared<PipelineTokenizer>(std::move(pipeline));
}

}  // namespace tessera::text
