#include "text/gguf_vocabulary_of.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "text/base64.h"
#include "text/gguf_patterns.h"
#include "text/metaspace.h"

namespace tessera::text {
namespace {

using nlohmann::json;

constexpr std::int32_t kNormalToken = 1, kUnknownToken = 2, kControlToken = 3, kUserToken = 4, kUnusedToken = 5,
                       kByteToken = 6;

/// The names under which tokens that should be control tokens stand in some files without being so marked.
bool looks_special(const std::string& token) {
  const auto between = [&](const char* begin, const char* end) {
    return token.starts_with(begin) && token.ends_with(end);
  };
  return token == "<pad>" || token == "<mask>" || token == "<2mass>" || token == "[@BOS@]" || between("<|", "|>") ||
         between("<\xEF\xBD\x9C", "\xEF\xBD\x9C>") || between("<unused", ">");
}

/// A ByteLevel among the stages that cut words: tokens are bytes, whatever the model says of bytes it has no token for.
bool cuts_bytes(const json& pre_tokenizer) {
  if (!pre_tokenizer.is_object()) return false;
  const json stages = pre_tokenizer.value("pretokenizers", json::array());
  return pre_tokenizer.value("type", "") == "ByteLevel" || std::any_of(stages.begin(), stages.end(), &cuts_bytes);
}

class VocabularyBuilder {
 public:
  VocabularyBuilder(const Tokenizer& tokenizer, const json& root) : tokenizer_(tokenizer), root_(root) {}

  GgufVocabulary build(std::int64_t vocab_size) {
    const json& model = root_.at("model");
    const std::string type = model.value("type", "BPE");
    if (type != "BPE" && type != "Unigram" && type != "WordPiece")
      throw DataError("--gguf: a tokenizer of type " + type +
                      " is not written; byte-level BPE, WordPiece and SentencePiece's BPE and unigrams are");
    is_words_ = type == "WordPiece";
    is_byte_level_ =
        type == "BPE" && (!model.value("byte_fallback", false) || cuts_bytes(root_.value("pre_tokenizer", json())));
    v_.model = type == "Unigram" ? "t5" : is_words_ ? "bert" : is_byte_level_ ? "gpt2" : "llama";
    v_.pre = is_byte_level_ ? gguf_pre_name(root_.value("normalizer", json()), root_.value("pre_tokenizer", json()),
                                            model.value("ignore_merges", false))
             : is_words_    ? "jina-v2-en"
                            : "default";
    if (is_words_) {
      add_tokens(model, vocab_size);
      mark_words();
      v_.lowercase = false;
      add_normalizer(root_.value("normalizer", json()));
    } else if (type == "Unigram") {
      add_unigrams(model, vocab_size);
    } else {
      add_tokens(model, vocab_size);
      add_merges(model);
      if (!is_byte_level_ && begins_bare()) v_.add_space_prefix = false;
    }
    v_.bos_id = tokenizer_.bos_id();
    v_.eos_id = tokenizer_.eos_id();
    const bool is_end =
        is_byte_level_ && tokenizer_.unk_id() == tokenizer_.eos_id();  // GPT-2's class says so; no text needs it
    if (!is_end) v_.unk_id = tokenizer_.unk_id();
    v_.sep_id = tokenizer_.sep_id();
    v_.pad_id = tokenizer_.pad_id();
    v_.cls_id = tokenizer_.cls_id();
    v_.mask_id = tokenizer_.mask_id();
    for (const auto id : {v_.bos_id, v_.eos_id, v_.unk_id, v_.sep_id, v_.pad_id, v_.cls_id, v_.mask_id})
      if (id >= 0) check_place(static_cast<std::size_t>(id), tokenizer_.id_to_token(id));
    if (v_.bos_id < 0) v_.bos_id = v_.cls_id;
    if (v_.eos_id < 0) v_.eos_id = v_.sep_id;
    v_.chat_templates = tokenizer_.chat_templates();
    const auto ids = tokenizer_.encode("a").ids;  // what it puts around a text
    const bool begins = v_.bos_id >= 0 && !ids.empty() && ids.front() == v_.bos_id,
               ends = v_.eos_id >= 0 && !ids.empty() && ids.back() == v_.eos_id, is_unigram = type == "Unigram";
    // Said where readers assume something else.
    const bool assumed = is_byte_level_ ? gguf_pre(v_.pre, "--gguf").add_bos : !is_unigram;
    if (begins || assumed) v_.add_bos = begins;
    if (ends != is_unigram) v_.add_eos = ends;
    if (is_words_ && !(begins && ends))
      throw DataError(
          "--gguf: readers of WordPiece put cls_token before and sep_token behind a text; this tokenizer "
          "does not");
    check_cuts_alike();
    return std::move(v_);
  }

 private:
  /// No space is put before a text.
  bool begins_bare() const {
    const auto ids = tokenizer_.encode("a", false).ids;
    return !ids.empty() && v_.tokens.at(static_cast<std::size_t>(ids.front())) == "a";
  }

  /// What a reader of the file would make of a text.
  void check_cuts_alike() const {
    if (is_byte_level_ && v_.merges.empty()) return;  // every byte is a token, which readers do not take
    const std::string text = std::string("Hello world, 12 times.") + (is_words_ ? " Caf\u00e9 \u4e2d\u6587" : "");
    const auto own = tokenizer_.encode(text, false).ids, written = make_gguf_tokenizer(v_)->encode(text, false).ids;
    if (own != written)
      throw DataError(fmt::format(
          "--gguf: '{}' is the tokens {} here, and would be {} of a GGUF file, whose forms do not have this "
          "tokenizer; export a folder (without --gguf)",
          text, fmt::join(own, " "), fmt::join(written, " ")));
  }

  void check_place(std::size_t id, const std::string& token) const {
    if (id >= v_.tokens.size())
      throw DataError(fmt::format("--gguf: token {} ('{}') lies outside the model's table of {} rows", id, token,
                                  v_.tokens.size()));
  }

  void put(std::size_t id, const std::string& token, std::int32_t type) {
    check_place(id, token);
    v_.tokens[id] = token;
    v_.token_types[id] = type;
  }

  /// Words begin with U+2581, and what continues a word has no sign.
  void mark_words() {
    const std::string continues = "##";
    for (std::size_t id = 0; id < v_.tokens.size(); ++id) {
      std::string& token = v_.tokens[id];
      if (v_.token_types[id] != kControlToken)
        token = token.starts_with(continues) ? token.substr(continues.size()) : std::string(kMetaspace) + token;
    }
  }

  /// Of tokenizer.json; a BertNormalizer that says nothing of accents strips them where it makes letters small.
  void add_normalizer(const json& stage) {
    if (!stage.is_object()) return;
    const std::string type = stage.value("type", "");
    if (type == "Lowercase") v_.lowercase = true;
    if (type == "StripAccents") v_.strip_accents = true;
    if (type == "BertNormalizer") {
      v_.lowercase = stage.value("lowercase", true);
      if (stage.value("strip_accents", json()).is_boolean()) v_.strip_accents = stage["strip_accents"].get<bool>();
    }
    for (const json& part : stage.value("normalizers", json::array())) add_normalizer(part);
  }

  void add_unused_tokens(std::int64_t vocab_size) {
    for (std::int64_t i = 0; i < vocab_size; ++i) v_.tokens.push_back(fmt::format("[PAD{}]", i));
    v_.token_types.assign(v_.tokens.size(), kUnusedToken);
  }

  void add_tokens(const json& model, std::int64_t vocab_size) {
    add_unused_tokens(vocab_size);
    for (const auto& [token, id] : model.at("vocab").items())
      put(id.get<std::size_t>(), token, plain_type(token, model));
    add_added_tokens();
  }

  void add_unigrams(const json& model, std::int64_t vocab_size) {
    constexpr float kUnusedScore = -10000;
    add_unused_tokens(vocab_size);
    v_.scores.assign(v_.tokens.size(), kUnusedScore);
    const json& pieces = model.at("vocab");
    const auto unknown =
        model.contains("unk_id") && model["unk_id"].is_number() ? model["unk_id"].get<std::size_t>() : pieces.size();
    for (std::size_t id = 0; id < pieces.size(); ++id) {
      put(id, pieces[id].at(0), id == unknown ? kUnknownToken : kNormalToken);
      v_.scores[id] = pieces[id].at(1);
    }
    add_added_tokens();
    add_unigram_stages();
  }

  /// What a text goes through before it is cut.
  void add_unigram_stages() {
    const auto stages = [&](const char* key, const char* list) {
      const json stage = root_.value(key, json());
      return stage.is_object() && stage.value("type", "") == "Sequence" ? stage.at(list) : json::array({stage});
    };
    bool prefixes = false, trims = false;
    for (const json& stage : stages("normalizer", "normalizers")) {
      if (!stage.is_object()) continue;
      const std::string type = stage.value("type", "");
      const bool has_map = type == "Precompiled" && stage.at("precompiled_charsmap").is_string();
      if (has_map && !decode_base64(stage["precompiled_charsmap"].get<std::string>(), v_.precompiled_charsmap))
        throw DataError("--gguf: tokenizer.json: precompiled_charsmap is not base64");
      trims |= type == "Strip" || type == "Replace";  // of more than one space
    }
    for (const json& stage : stages("pre_tokenizer", "pretokenizers")) {
      if (!stage.is_object()) continue;
      const std::string type = stage.value("type", "");
      trims |= type == "WhitespaceSplit";
      prefixes |= type == "Metaspace" &&
                  stage.value("prepend_scheme", stage.value("add_prefix_space", true) ? "always" : "never") != "never";
    }
    v_.add_space_prefix = prefixes;
    v_.remove_extra_whitespaces = trims;
  }

  void add_added_tokens() {
    for (const json& added : root_.value("added_tokens", json::array())) {
      std::string token = added.at("content");
      const bool special = added.value("special", false) || looks_special(token);
      const auto id = added.at("id").get<std::size_t>();
      if (!is_byte_level_ && id < v_.tokens.size() && v_.token_types[id] == kUnknownToken) continue;
      for (std::size_t at; !special && (at = token.find(kMetaspace)) != std::string::npos;)
        token.replace(at, kMetaspace.size(), " ");
      put(id, token, special ? kControlToken : kUserToken);
    }
  }

  std::int32_t plain_type(const std::string& token, const json& model) const {
    if (is_byte_level_ || is_words_) return kNormalToken;
    if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) return kByteToken;
    const bool is_unknown = model.contains("unk_token") && model["unk_token"] == token;
    return is_unknown ? kUnknownToken : kNormalToken;
  }

  /// Of SentencePiece's BPE the file has scores: what is merged first has the highest.
  void add_merges(const json& model) {
    std::vector<std::pair<std::string, std::string>> merges;
    for (const json& merge : model.at("merges")) {
      if (merge.is_array()) {
        merges.emplace_back(merge.at(0), merge.at(1));
      } else {
        const std::string text = merge;
        const auto space = text.find(' ', 1);
        merges.emplace_back(text.substr(0, space), text.substr(space + 1));
      }
    }
    if (is_byte_level_) {
      for (const auto& [left, right] : merges) v_.merges.push_back(left + " " + right);
      return;
    }
    v_.scores.assign(v_.tokens.size(), 0.0f);
    for (std::size_t rank = merges.size(); rank-- > 0;) {
      const json& vocab = model.at("vocab");
      const auto found = vocab.find(merges[rank].first + merges[rank].second);
      if (found != vocab.end()) v_.scores.at(found->get<std::size_t>()) = -static_cast<float>(rank + 1);
    }
  }

  const Tokenizer& tokenizer_;
  const json& root_;
  GgufVocabulary v_;
  bool is_byte_level_ = true, is_words_ = false;
};

}  // namespace

bool separates_twice(const json& root) {
  const json stage = root.value("post_processor", json());
  if (!stage.is_object()) return false;
  const json none = json::array();
  const auto parts = stage.value("type", "") == "Sequence" ? stage.value("processors", none) : json::array({stage});
  return std::any_of(parts.begin(), parts.end(), [&](const json& part) {
    const json pair = part.value("pair", none);
    const auto is_text = [](const json& piece) { return piece.contains("Sequence"); };
    const auto first = std::find_if(pair.begin(), pair.end(), is_text);
    const auto second = first == pair.end() ? first : std::find_if(first + 1, pair.end(), is_text);
    return part.value("type", "") == "RobertaProcessing" || (second != pair.end() && second - first > 2);
  });
}

GgufVocabulary gguf_vocabulary_of(const Tokenizer& tokenizer, const json& root, std::int64_t vocab_size) {
  try {
    return VocabularyBuilder(tokenizer, root).build(vocab_size);
  } catch (const json::exception& e) {
    throw DataError(std::string("--gguf: tokenizer.json is not as expected: ") + e.what());
  }
}

}  // namespace tessera::text
