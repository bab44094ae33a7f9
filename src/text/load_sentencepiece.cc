#include <fmt/format.h>

#include "base/file.h"
#include "tessera/base/error.h"
#include "text/load.h"
#include "text/sentencepiece_model.h"

namespace tessera::text {
namespace {

constexpr int kT5ExtraIds = 100;

std::string token_of(const SentencePieceModel& model, std::int32_t id) {
  return id < 0 ? std::string() : model.pieces[static_cast<std::size_t>(id)].text;
}

// The published form keeps words apart by white space and puts the dummy prefix before each. That equals
// SentencePiece's own rule only when extra white space is removed and the prefix is wanted; the other cases follow
// SentencePiece.
void set_spaces(const SentencePieceModel& model, const std::string& file, Pipeline& out) {
  std::vector<NormalizerPtr> normalizers;
  if (!model.precompiled_charsmap.empty())
    normalizers.push_back(make_precompiled(model.precompiled_charsmap, file + ": normalizer_spec"));
  MetaspaceOptions metaspace;
  metaspace.prepend = model.add_dummy_prefix ? PrependScheme::kAlways : PrependScheme::kNever;
  if (model.remove_extra_whitespaces && model.add_dummy_prefix) {
    std::vector<PreTokenizerPtr> parts;
    parts.push_back(make_whitespace_split());
    parts.push_back(make_metaspace(metaspace));
    out.pre_tokenizer = make_sequence(std::move(parts));
  } else {
    if (model.remove_extra_whitespaces) {
      normalizers.push_back(make_strip(Ends::kBoth));
      normalizers.push_back(make_replace(" {2,}", " ", file));
    }
    out.pre_tokenizer = make_metaspace(metaspace);
  }
  if (!normalizers.empty()) out.normalizer = make_sequence(std::move(normalizers));
  out.decoder = make_metaspace_decoder(metaspace.replacement, model.add_dummy_prefix);
}

void add_extra_ids(const SentencePieceModel& model, const TokenizerConfig& config, UnigramOptions& unigram,
                   std::vector<AddedToken>& added) {
  const bool t5 = model.pad_id == 0 && model.eos_id == 1 && model.unk_id == 2;
  const int count = config.extra_ids.value_or(t5 ? kT5ExtraIds : 0);
  for (const auto& piece : model.pieces)
    if (piece.text == "<extra_id_0>") return;
  for (int n = count - 1; n >= 0; --n) {
    const auto name = fmt::format("<extra_id_{}>", n);
    added.push_back({.content = name, .id = static_cast<std::int32_t>(unigram.pieces.size()), .special = true});
    unigram.pieces.emplace_back(name, 0.0);
  }
}

}  // namespace

Pipeline load_sentencepiece(const std::string& file, const TokenizerConfig& config) {
  const auto model = parse_sentencepiece(read_file(file), file);
  if (model.type != SentencePieceModel::Type::kUnigram)
    throw DataError(
        fmt::format("{}: expected a Unigram model, found another type ({}); use the tokenizer.json of this model", file,
                    static_cast<int>(model.type)),
        file);
  if (!model.escape_whitespaces || model.treat_whitespace_as_suffix)
    throw DataError(file + ": models without escape_whitespaces, or with white space as suffix, are not supported",
                    file);
  Pipeline out;
  UnigramOptions unigram;
  unigram.unk_id = model.unk_id;
  unigram.byte_fallback = model.byte_fallback;
  std::vector<AddedToken> added;
  for (const auto& piece : model.pieces) {
    using PieceType = SentencePieceModel::PieceType;
    const bool special = piece.type == PieceType::kControl || piece.type == PieceType::kUnknown;
    if (special || piece.type == PieceType::kUserDefined)
      added.push_back(
          {.content = piece.text, .id = static_cast<std::int32_t>(unigram.pieces.size()), .special = special});
    unigram.pieces.emplace_back(piece.text, piece.score);
  }
  add_extra_ids(model, config, unigram, added);
  set_spaces(model, file, out);
  out.model = make_unigram(std::move(unigram), file);
  out.added_tokens = AddedTokens(std::move(added), out.normalizer.get());
  if (model.eos_id >= 0) {
    using Kind = TemplatePart::Kind;
    const TemplatePart eos{Kind::kSpecial, {model.eos_id}};
    out.post_processor.single = {{Kind::kFirst, {}}, eos};
    out.post_processor.pair = {{Kind::kFirst, {}}, eos, {Kind::kSecond, {}}, eos};
  }
  out.special = {token_of(model, model.pad_id), token_of(model, model.eos_id), token_of(model, model.bos_id),
                 token_of(model, model.unk_id)};
  return out;
}

}  // namespace tessera::text
