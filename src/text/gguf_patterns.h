#pragma once
// The names that `tokenizer.ggml.pre` of GGUF files may have, and how each cuts text into words.
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::text {

struct GgufPre {
  nlohmann::json normalizer;     // null: none
  nlohmann::json pre_tokenizer;  // of tokenizer.json
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

/// DataError, beginning with `where`, lists the known names.
GgufPre gguf_pre(const std::string& name, const std::string& where);

/// The name of what a tokenizer.json says, the first that the format has for it. DataError where it has none.
std::string gguf_pre_name(const nlohmann::json& normalizer, const nlohmann::json& pre_tokenizer, bool ignore_merges);

}  // namespace tessera::text
