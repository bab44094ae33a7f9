#include <fmt/format.h>

#include "base/file.h"
#include "tessera/base/error.h"
#include "text/base64.h"
#include "text/convert.h"
#include "text/json_forms.h"
#include "text/sentencepiece_model.h"
#include "text/special_defaults.h"

namespace tessera::text {
namespace {

using nlohmann::json;
constexpr int kT5ExtraIds = 100;

std::string token_of(const SentencePieceModel& model, std::int32_t id) {
  return id < 0 ? std::string() : model.pieces[static_cast<std::size_t>(id)].text;
}

json metaspace(const char* scheme) {
  return {{"type", "Metaspace"}, {"replacement", "\xE2\x96\x81"}, {"prepend_scheme", scheme}, {"split", true}};
}

// SentencePiece's own preparation of the text: its character map, then white space taken away.
json preparation(const SentencePieceModel& model, bool strip) {
  json out = json::array();
  if (!model.precompiled_charsmap.empty())
    out.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(model.precompiled_charsmap)}});
  if (strip) {
    out.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    out.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
  }
  return out;
}

// The published form keeps words apart by white space and puts the dummy prefix before each. That equals
// SentencePiece's own rule only when extra white space is removed and the prefix is wanted; the other cases follow
// SentencePiece.
void set_unigram_stages(const SentencePieceModel& model, json& root) {
  const bool words = model.remove_extra_whitespaces && model.add_dummy_prefix;
  const auto parts = preparation(model, model.remove_extra_whitespaces && !words);
  if (parts.size() == 1) root["normalizer"] = parts[0];
  if (parts.size() > 1) root["normalizer"] = {{"type", "Sequence"}, {"normalizers", parts}};
  const auto scheme = metaspace(model.add_dummy_prefix ? "always" : "never");
  if (words)
    root["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", json::array({{{"type", "WhitespaceSplit"}}, scheme})}};
  else
    root["pre_tokenizer"] = scheme;
  root["decoder"] = scheme;
}

void set_bpe_stages(const SentencePieceModel& model, const TokenizerConfig& config, json& root) {
  set_llama_stages({.add_prefix_space = config.add_prefix_space.value_or(model.add_dummy_prefix),
                    .legacy = config.legacy.value_or(true)},
                   root);
  auto parts = preparation(model, model.remove_extra_whitespaces);
  if (parts.empty()) return;
  if (root.contains("normalizer"))
    for (const auto& part : root["normalizer"]["normalizers"]) parts.push_back(part);
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", parts}};
}

void add_extra_ids(const SentencePieceModel& model, const TokenizerConfig& config, json& root) {
  const bool t5 = model.pad_id == 0 && model.eos_id == 1 && model.unk_id == 2;
  const int count = config.extra_ids.value_or(t5 ? kT5ExtraIds : 0);
  for (const auto& piece : model.pieces)
    if (piece.text == "<extra_id_0>") return;
  auto& vocab = root["model"]["vocab"];
  for (int n = count - 1; n >= 0; --n) {
    const auto name = fmt::format("<extra_id_{}>", n);
    root["added_tokens"].push_back(json_added_token(name, static_cast<std::int64_t>(vocab.size()), true));
    vocab.push_back({name, 0.0});
  }
}

json unigram_model(const SentencePieceModel& model) {
  json vocab = json::array();
  for (const auto& piece : model.pieces) vocab.push_back({piece.text, piece.score});
  json out = {{"type", "Unigram"}, {"vocab", vocab}, {"byte_fallback", model.byte_fallback}};
  if (model.unk_id >= 0) out["unk_id"] = model.unk_id;
  return out;
}

json bpe_model(const SentencePieceModel& model) {
  std::vector<std::pair<std::string, double>> pieces;
  json vocab = json::object();
  for (const auto& piece : model.pieces) {
    vocab[piece.text] = pieces.size();
    pieces.emplace_back(piece.text, piece.score);
  }
  auto out = json_plain_bpe();
  if (model.unk_id >= 0) out["unk_token"] = token_of(model, model.unk_id);
  out["fuse_unk"] = true;
  out["byte_fallback"] = model.byte_fallback;
  out["vocab"] = std::move(vocab);
  out["merges"] = merges_from_scores(pieces);
  return out;
}

bool is_special(const SentencePieceModel::Piece& piece, const TokenizerConfig& config) {
  using Type = SentencePieceModel::PieceType;
  const bool turn = config.family() == "Gemma" && (piece.text == "<start_of_turn>" || piece.text == "<end_of_turn>");
  return piece.type == Type::kControl || piece.type == Type::kUnknown || turn;
}

}  // namespace

std::string sentencepiece_to_json(const std::string& file, const TokenizerConfig& config, SpecialTokens& special) {
  using Type = SentencePieceModel::Type;
  const auto model = parse_sentencepiece(read_file(file), file);
  if (model.type != Type::kUnigram && model.type != Type::kBpe)
    throw DataError(
        fmt::format("{}: expected a Unigram or BPE model, found another type ({}); use the tokenizer.json of "
                    "this model",
                    file, static_cast<int>(model.type)),
        file);
  if (!model.escape_whitespaces || model.treat_whitespace_as_suffix)
    throw DataError(file + ": models without escape_whitespaces, or with white space as suffix, are not supported",
                    file);
  json root = {{"version", "1.0"}, {"added_tokens", json::array()}};
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (is_special(piece, config) || piece.type == SentencePieceModel::PieceType::kUserDefined)
      root["added_tokens"].push_back(
          json_added_token(piece.text, static_cast<std::int64_t>(id), is_special(piece, config)));
  }
  const IdAndToken none{-1, ""}, bos{model.bos_id, token_of(model, model.bos_id)},
      eos{model.eos_id, token_of(model, model.eos_id)};
  if (model.type == Type::kUnigram) {
    root["model"] = unigram_model(model);
    add_extra_ids(model, config, root);
    set_unigram_stages(model, root);
    root["post_processor"] = json_template(none, eos);
  } else {
    root["model"] = bpe_model(model);
    set_bpe_stages(model, config, root);
    root["post_processor"] = json_template(config.add_bos_token.value_or(true) ? bos : none,
                                           config.add_eos_token.value_or(false) ? eos : none);
  }
  special = {
      .bos = bos.second, .eos = eos.second, .unk = token_of(model, model.unk_id), .pad = token_of(model, model.pad_id)};
  override_special(config.special, special);
  return root.dump();
}

}  // namespace tessera::text
