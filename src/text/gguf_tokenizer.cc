#include "text/gguf_tokenizer.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>

#include "base/json_text.h"
#include "base/plain_reason.h"
#include "tessera/base/error.h"
#include "text/base64.h"
#include "text/gguf_patterns.h"
#include "text/json_forms.h"
#include "text/load.h"
#include "text/metaspace.h"

namespace tessera::text {
namespace {

using nlohmann::json;

constexpr std::int32_t kUnknown = 2, kControl = 3, kUserDefined = 4;
constexpr std::array<std::string_view, 3> kPhi3Plain{"<unk>", "<s>", "<|endoftext|>"};  // take no space behind them

class Converter {
 public:
  explicit Converter(const GgufVocabulary& vocabulary) : v_(vocabulary) { check(); }

  json convert() const {
    json root = {{"version", "1.0"}, {"added_tokens", added_tokens()}};
    if (v_.model == "llama")
      llama(root);
    else if (v_.model == "gpt2")
      gpt2(root);
    else if (v_.model == "bert")
      bert(root);
    else if (v_.model == "t5")
      t5(root);
    else
      fail("model", fmt::format("unknown tokenizer \"{}\"; known are llama, gpt2, bert, t5", v_.model));
    return root;
  }

  std::string token(std::int32_t id) const { return id < 0 ? "" : v_.tokens[static_cast<std::size_t>(id)]; }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw DataError(fmt::format("{}: tokenizer.ggml.{}: {}", v_.file, key, what), v_.file);
  }

  void check() const {
    const auto count = v_.tokens.size();
    if (count == 0) fail("tokens", "the list is missing or empty");
    if (!v_.scores.empty() && v_.scores.size() != count)
      fail("scores", fmt::format("{} scores for {} tokens", v_.scores.size(), count));
    if (!v_.token_types.empty() && v_.token_types.size() != count)
      fail("token_type", fmt::format("{} types for {} tokens", v_.token_types.size(), count));
    for (std::size_t i = 0; i < count; ++i)
      if (!simdjson::validate_utf8(v_.tokens[i])) fail("tokens", fmt::format("token {} is not UTF-8", i));
    const auto check_id = [&](const char* key, std::int32_t id) {
      if (id < -1 || id >= static_cast<std::int64_t>(count))
        fail(key, fmt::format("there is no token {}, the vocabulary has {}", id, count));
    };
    check_id("bos_token_id", v_.bos_id);
    check_id("eos_token_id", v_.eos_id);
    check_id("unknown_token_id", v_.unk_id);
    check_id("seperator_token_id", v_.sep_id);  // spelled so in the format
    check_id("padding_token_id", v_.pad_id);
    check_id("cls_token_id", v_.cls_id);
    check_id("mask_token_id", v_.mask_id);
  }

  std::int32_t type(std::size_t id) const { return v_.token_types.empty() ? 1 : v_.token_types[id]; }

  json added_tokens() const {
    json out = json::array();
    for (std::size_t id = 0; id < v_.tokens.size(); ++id) {
      const auto is = [id](std::int32_t special) { return special >= 0 && static_cast<std::size_t>(special) == id; };
      const bool special = type(id) == kControl || is(v_.bos_id) || is(v_.eos_id) || is(v_.unk_id) || is(v_.sep_id) ||
                           is(v_.pad_id) || is(v_.cls_id) || is(v_.mask_id);
      if (!special && type(id) != kUserDefined) continue;
      out.push_back(json_added_token(v_.tokens[id], static_cast<std::int64_t>(id), special));
      out.back()["rstrip"] =
          v_.takes_space_behind && std::find(kPhi3Plain.begin(), kPhi3Plain.end(), v_.tokens[id]) == kPhi3Plain.end();
    }
    return out;
  }

  json vocabulary() const {
    json out = json::object();
    for (std::size_t id = 0; id < v_.tokens.size(); ++id) out[v_.tokens[id]] = id;
    return out;
  }

  std::vector<std::pair<std::string, double>> scored() const {
    if (v_.scores.empty()) fail("scores", "the list is missing");
    std::vector<std::pair<std::string, double>> out;
    for (std::size_t id = 0; id < v_.tokens.size(); ++id) out.emplace_back(v_.tokens[id], v_.scores[id]);
    return out;
  }

  std::int32_t unknown_id() const {
    if (v_.unk_id >= 0) return v_.unk_id;
    for (std::size_t id = 0; id < v_.tokens.size(); ++id)
      if (type(id) == kUnknown) return static_cast<std::int32_t>(id);
    return -1;
  }

  json wrapped(bool add_bos, bool add_eos, int second_type_id = 1) const {
    const IdAndToken none{-1, ""};
    return json_template(v_.add_bos.value_or(add_bos) ? IdAndToken{v_.bos_id, token(v_.bos_id)} : none,
                         v_.add_eos.value_or(add_eos) ? IdAndToken{v_.eos_id, token(v_.eos_id)} : none, second_type_id);
  }

  void llama(json& root) const {
    set_llama_stages({.add_prefix_space = v_.add_space_prefix.value_or(true), .legacy = true}, root);
    auto model = json_plain_bpe();
    if (const auto unknown = unknown_id(); unknown >= 0) model["unk_token"] = token(unknown);
    model["fuse_unk"] = true;
    model["byte_fallback"] = true;
    model["vocab"] = vocabulary();
    model["merges"] = v_.merges.empty() ? merges_from_scores(scored()) : json(v_.merges);
    root["model"] = std::move(model);
    root["post_processor"] = wrapped(true, false);
  }

  void gpt2(json& root) const {
    if (v_.merges.empty()) fail("merges", "the list is missing");
    const auto pre = gguf_pre(v_.pre, v_.file);
    if (!pre.normalizer.is_null()) root["normalizer"] = pre.normalizer;
    root["pre_tokenizer"] = pre.pre_tokenizer;
    root["decoder"] = json_byte_level(true, true, true);
    auto model = json_plain_bpe();
    model["ignore_merges"] = pre.ignore_merges;
    model["vocab"] = vocabulary();
    model["merges"] = v_.merges;
    root["model"] = std::move(model);
    root["post_processor"] = wrapped(pre.add_bos, false);
  }

  // Words begin with U+2581 in these files, and what continues a word has no sign.
  void bert(json& root) const {
    json words = json::object();
    for (std::size_t id = 0; id < v_.tokens.size(); ++id) {
      const auto& text = v_.tokens[id];
      const bool plain = type(id) == kControl || type(id) == kUnknown || (text.starts_with('[') && text.ends_with(']'));
      words[plain ? text : text.starts_with(kMetaspace) ? text.substr(kMetaspace.size()) : "##" + text] = id;
    }
    const auto cls = v_.cls_id >= 0 ? v_.cls_id : v_.bos_id, sep = v_.sep_id >= 0 ? v_.sep_id : v_.eos_id;
    if (cls < 0 || sep < 0) fail("cls_token_id", "a BERT tokenizer needs cls_token_id and seperator_token_id");
    root["normalizer"] = {{"type", "BertNormalizer"},
                          {"clean_text", true},
                          {"handle_chinese_chars", true},
                          {"strip_accents", v_.strip_accents ? json(*v_.strip_accents) : json()},
                          {"lowercase", v_.lowercase.value_or(true)}};
    root["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
    root["post_processor"] = json_cls_sep_template({cls, token(cls)}, {sep, token(sep)});
    root["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
    root["model"] = {{"type", "WordPiece"},
                     {"unk_token", unknown_id() >= 0 ? token(unknown_id()) : "[UNK]"},
                     {"continuing_subword_prefix", "##"},
                     {"max_input_chars_per_word", 100},
                     {"vocab", std::move(words)}};
  }

  void t5(json& root) const {
    const bool prefix = v_.add_space_prefix.value_or(true), trims = v_.remove_extra_whitespaces.value_or(true);
    json prepared = json::array(), parts = json::array();
    if (!v_.precompiled_charsmap.empty())
      prepared.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", encode_base64(v_.precompiled_charsmap)}});
    if (trims && !prefix) {  // words that are cut apart would all begin without the sign
      prepared.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
      prepared.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
    }
    if (!prepared.empty()) root["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(prepared)}};
    const json metaspace = {{"type", "Metaspace"},
                            {"replacement", kMetaspace},
                            {"prepend_scheme", prefix ? "always" : "never"},
                            {"split", true}};
    if (trims && prefix) parts.push_back({{"type", "WhitespaceSplit"}});
    parts.push_back(metaspace);
    root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", parts}};
    root["decoder"] = metaspace;
    json pieces = json::array();
    for (const auto& [text, score] : scored()) pieces.push_back({text, score});
    root["model"] = {{"type", "Unigram"}, {"vocab", std::move(pieces)}, {"byte_fallback", false}};
    if (const auto unknown = unknown_id(); unknown >= 0) root["model"]["unk_id"] = unknown;
    root["post_processor"] = wrapped(false, true, 0);
  }

  const GgufVocabulary& v_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_gguf_tokenizer(const GgufVocabulary& vocabulary) {
  const Converter converter(vocabulary);
  auto source = std::make_shared<TokenizerSource>();
  try {
    source->json = json_text(converter.convert());
  } catch (const json::exception& e) {  // merges that are not UTF-8
    throw DataError(fmt::format("{}: tokenizer.ggml: {}", vocabulary.file, plain_reason(e)), vocabulary.file);
  }
  TokenizerConfig config;
  config.special.bos = converter.token(vocabulary.bos_id);
  config.special.eos = converter.token(vocabulary.eos_id);
  config.special.unk = converter.token(vocabulary.unk_id);
  config.special.sep = converter.token(vocabulary.sep_id);
  config.special.pad = converter.token(vocabulary.pad_id);
  config.special.cls = converter.token(vocabulary.cls_id);
  config.special.mask = converter.token(vocabulary.mask_id);
  config.chat_templates = vocabulary.chat_templates;
  return make_tokenizer(parse_tokenizer_json(source->json, source, vocabulary.file, config));
}

}  // namespace tessera::text
