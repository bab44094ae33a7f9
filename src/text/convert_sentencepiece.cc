#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/file.h"
#include "base/json_text.h"
#include "tessera/base/error.h"
#include "text/base64.h"
#include "text/convert.h"
#include "text/json_forms.h"
#include "text/metaspace.h"
#include "text/sentencepiece_model.h"

namespace tessera::text {
namespace {

using nlohmann::json;

std::string token_of(const SentencePieceModel& model, std::int32_t id) {
  return id < 0 ? std::string() : model.pieces[static_cast<std::size_t>(id)].text;
}

constexpr int kT5ExtraIds = 100;

json replaced(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

json metaspace(std::string_view scheme) {
  return {{"type", "Metaspace"}, {"replacement", kMetaspace}, {"prepend_scheme", scheme}, {"split", true}};
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

void set_bpe_stages(const SentencePieceModel& model, json& root) {
  set_llama_stages({.add_prefix_space = model.add_dummy_prefix}, root);
  auto parts = preparation(model, model.remove_extra_whitespaces);
  if (parts.empty()) return;
  if (root.contains("normalizer"))
    for (const auto& part : root["normalizer"]["normalizers"]) parts.push_back(part);
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", parts}};
}

void add_extra_ids(int count, SentencePieceModel& model, json& root) {
  for (const auto& piece : model.pieces)
    if (piece.text == "<extra_id_0>") return;
  for (int n = count - 1; n >= 0; --n) {
    const auto name = fmt::format("<extra_id_{}>", n);
    root["added_tokens"].push_back(json_added_token(name, std::ssize(model.pieces), true));
    model.pieces.push_back({.text = name});
  }
}

json unigram_model(const SentencePieceModel& model, bool byte_fallback) {
  json vocab = json::array();
  for (const auto& piece : model.pieces) vocab.push_back({piece.text, piece.score});
  json out = {{"type", "Unigram"}, {"vocab", vocab}, {"byte_fallback", byte_fallback}};
  if (model.unk_id >= 0) out["unk_id"] = model.unk_id;
  return out;
}

json bpe_model(const SentencePieceModel& model, bool byte_fallback) {
  std::vector<std::pair<std::string, double>> pieces;
  json vocab = json::object();
  for (const auto& piece : model.pieces) {
    vocab[piece.text] = pieces.size();
    pieces.emplace_back(piece.text, piece.score);
  }
  auto out = json_plain_bpe();
  if (model.unk_id >= 0) out["unk_token"] = token_of(model, model.unk_id);
  out["fuse_unk"] = true;
  out["byte_fallback"] = byte_fallback;
  out["vocab"] = std::move(vocab);
  out["merges"] = merges_from_scores(pieces);
  return out;
}

json any_model(const SentencePieceModel& model, bool byte_fallback) {
  return model.type == SentencePieceModel::Type::kUnigram ? unigram_model(model, byte_fallback)
                                                          : bpe_model(model, byte_fallback);
}

// Llama's class: the model's own preparation of the text counts for nothing.
void set_llama_form(const SentencePieceModel& model, const TokenizerConfig& config, json& root) {
  const bool code = config.family() == "CodeLlama";  // it knows neither key
  root["model"] = any_model(model, true);
  set_llama_stages({.add_prefix_space = code || config.add_prefix_space.value_or(true),
                    .legacy = code || config.legacy.value_or(true)},
                   root);
}

// Gemma's: the first three pieces are the configuration's, and a tab takes the place of its byte.
void set_gemma_form(SentencePieceModel model, const SpecialTokens& special, json& root) {
  const std::array first{special.pad, special.eos, special.bos};
  for (std::size_t id = 0; id < first.size() && id < model.pieces.size(); ++id) model.pieces[id].text = first[id];
  const auto find = [&](std::string_view text) {
    return std::find_if(model.pieces.begin(), model.pieces.end(),
                        [&](const auto& piece) { return piece.text == text; });
  };
  if (const auto byte = find("<0x09>"); find("\t") == model.pieces.end() && byte != model.pieces.end())
    byte->text.assign(1, '\t');
  root["model"] = any_model(model, true);
  root["normalizer"] = replaced(" ", kMetaspace);
  root["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  root["decoder"] = {
      {"type", "Sequence"},
      {"decoders", json::array({replaced(kMetaspace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}})}};
}

// T5's: white space at the end goes, several spaces are one.
void set_t5_form(SentencePieceModel model, const TokenizerConfig& config, const IdAndToken& eos, json& root) {
  const bool prefix = config.add_prefix_space.value_or(true);
  add_extra_ids(config.extra_ids.value_or(kT5ExtraIds), model, root);
  root["model"] = any_model(model, false);
  json parts = preparation(model, false);
  parts.push_back({{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}});
  parts.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", kMetaspace}});
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", parts}};
  root["pre_tokenizer"] = metaspace(!prefix ? "never" : config.legacy.value_or(true) ? "always" : "first");
  root["decoder"] = root["pre_tokenizer"];
  root["post_processor"] = json_template({-1, ""}, eos, 0);
}

// DeBERTa-v2's: white space at both ends goes, several spaces are one; a text is between [CLS] and [SEP].
void set_deberta_form(const SentencePieceModel& model, const TokenizerConfig& config, const std::string& file,
                      json& root) {
  const auto piece = [&](const std::string& text) {
    const auto it =
        std::find_if(model.pieces.begin(), model.pieces.end(), [&](const auto& p) { return p.text == text; });
    if (it == model.pieces.end()) throw DataError(fmt::format("{}: the model has no piece \"{}\"", file, text), file);
    return IdAndToken{static_cast<std::int32_t>(it - model.pieces.begin()), text};
  };
  root["model"] = any_model(model, false);
  json parts = json::array();
  if (config.do_lower_case.value_or(false)) parts.push_back({{"type", "Lowercase"}});
  parts.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
  for (auto& part : preparation(model, false)) parts.push_back(std::move(part));
  parts.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", parts}};
  const auto words = metaspace("always");  // its slow class knows neither legacy nor add_prefix_space
  json cuts = json::array();
  if (config.split_by_punct.value_or(false)) cuts.push_back({{"type", "Punctuation"}, {"behavior", "Isolated"}});
  cuts.push_back(words);
  root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", cuts}};
  root["decoder"] = words;
  root["post_processor"] = json_cls_sep_template(piece("[CLS]"), piece("[SEP]"));
}

// Without a class: what the model itself says.
void set_own_form(SentencePieceModel model, const IdAndToken& bos, const IdAndToken& eos, json& root) {
  const IdAndToken none{-1, ""};
  const bool is_unigram = model.type == SentencePieceModel::Type::kUnigram;
  if (is_unigram && model.pad_id == 0 && model.eos_id == 1 && model.unk_id == 2)  // as T5's are
    add_extra_ids(kT5ExtraIds, model, root);
  root["model"] = any_model(model, model.byte_fallback);
  if (is_unigram) {
    set_unigram_stages(model, root);
    root["post_processor"] = json_template(none, eos, 0);
  } else {
    set_bpe_stages(model, root);
    root["post_processor"] = json_template(bos, none, 1);
  }
}

bool is_special(const SentencePieceModel::Piece& piece, const TokenizerConfig& config) {
  using Type = SentencePieceModel::PieceType;
  const bool turn = config.family() == "Gemma" && (piece.text == "<start_of_turn>" || piece.text == "<end_of_turn>");
  // A class calls the unknown piece special only if it is its unk_token.
  return piece.type == Type::kControl || (config.family().empty() && piece.type == Type::kUnknown) || turn;
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
  const IdAndToken bos{model.bos_id, token_of(model, model.bos_id)}, eos{model.eos_id, token_of(model, model.eos_id)};
  const auto family = config.family();
  if (family == "Llama" || family == "CodeLlama")
    set_llama_form(model, config, root);
  else if (family == "Gemma")
    set_gemma_form(model, config.special, root);
  else if (family == "T5" || family == "MT5")
    set_t5_form(model, config, eos, root);
  else if (family == "DebertaV2")
    set_deberta_form(model, config, file, root);
  else if (family.empty())
    set_own_form(model, bos, eos, root);
  else
    throw_not_converted(config, file);
  if (!family.empty()) {
    special = config.special;
    return json_text(root);
  }
  special = {
      .bos = bos.second, .eos = eos.second, .unk = token_of(model, model.unk_id), .pad = token_of(model, model.pad_id)};
  override_special(config.special, special);
  return json_text(root);
}

}  // namespace tessera::text
