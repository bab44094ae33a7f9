#pragma once
// Pieces of tokenizer.json that converters share.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tessera::text {

extern const char* const kLlama3Pattern;
extern const char* const kQwen2Pattern;

nlohmann::json json_added_token(const std::string& content, std::int64_t id, bool special);

/// A template that puts these tokens before and after each text. A token of id -1 is left out.
using IdAndToken = std::pair<std::int32_t, std::string>;
nlohmann::json json_template(const IdAndToken& before, const IdAndToken& after, int second_type_id);

/// BERT's: one token before the first text, one behind each.
nlohmann::json json_cls_sep_template(const IdAndToken& cls, const IdAndToken& sep);

nlohmann::json json_byte_level(bool add_prefix_space, bool trim_offsets, bool use_regex);
/// Cuts at what `pattern` matches and keeps it.
nlohmann::json json_split(const std::string& pattern);
/// That, then ByteLevel without its own.
nlohmann::json json_split_then_byte_level(const std::string& pattern);
/// {"type": "BPE", ...} without vocab and merges.
nlohmann::json json_plain_bpe();

/// Merges from tokens by id and their scores, as SentencePiece's BPE joins: the pair whose whole scores highest first.
nlohmann::json merges_from_scores(const std::vector<std::pair<std::string, double>>& pieces);

/// normalizer, pre_tokenizer and decoder of Llama 2 (`legacy`: each part of a text between special tokens is prefixed).
struct LlamaForm {
  bool add_prefix_space = true, legacy = true;
};
void set_llama_stages(const LlamaForm& form, nlohmann::json& root);

}  // namespace tessera::text
