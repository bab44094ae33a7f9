#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "formats/gguf.h"
#include "tessera/base/error.h"
#include "text/gguf_tokenizer.h"

namespace tessera::text {
namespace {

std::int32_t id_of(const GgufHeader& header, const char* name) {
  const auto key = fmt::format("tokenizer.ggml.{}_token_id", name);
  const auto id = header.integer(key).value_or(-1);
  if (id < -1 || id > 0x7fffffff)
    throw DataError(fmt::format("{}: key '{}' is {}, which is no token", header.path, key, id), header.path);
  return static_cast<std::int32_t>(id);
}

std::map<std::string, std::string> templates_of(const GgufHeader& header) {
  const std::string key = "tokenizer.chat_template";
  std::map<std::string, std::string> templates;
  if (const auto text = header.text(key)) templates["default"] = *text;
  for (const auto& [name, value] : header.metadata)
    if (name.starts_with(key + "."))
      if (const auto* text = std::get_if<std::string>(&value)) templates[name.substr(key.size() + 1)] = *text;
  return templates;
}

/// By the architecture or, as in llama.cpp, the model's name. Later Phis have byte-level tokens.
bool is_phi3(const GgufHeader& header, const std::string& tokenizer_model) {
  std::string name = header.text("general.name").value_or("");
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool is_named = name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
  return tokenizer_model == "llama" && (is_named || header.text("general.architecture") == "phi3");
}

}  // namespace

GgufVocabulary gguf_vocabulary(const GgufHeader& header) {
  GgufVocabulary v;
  v.file = header.path;
  v.model = header.text("tokenizer.ggml.model").value_or("");
  v.pre = header.text("tokenizer.ggml.pre").value_or("");
  if (const auto* tokens = header.texts("tokenizer.ggml.tokens")) v.tokens = *tokens;
  if (v.model.empty() || v.tokens.empty())
    throw DataError(header.path + ": holds no tokenizer (keys tokenizer.ggml.model and tokenizer.ggml.tokens)",
                    header.path);
  if (const auto* scores = header.numbers("tokenizer.ggml.scores")) v.scores.assign(scores->begin(), scores->end());
  if (const auto* types = header.integers("tokenizer.ggml.token_type"))
    v.token_types.assign(types->begin(), types->end());
  if (const auto* merges = header.texts("tokenizer.ggml.merges")) v.merges = *merges;
  if (const auto* bytes = header.integers("tokenizer.ggml.precompiled_charsmap"))
    v.precompiled_charsmap.assign(bytes->begin(), bytes->end());
  v.bos_id = id_of(header, "bos");
  v.eos_id = id_of(header, "eos");
  v.unk_id = id_of(header, "unknown");
  v.sep_id = id_of(header, "seperator");  // so spelled in the format
  v.pad_id = id_of(header, "padding");
  v.cls_id = id_of(header, "cls");
  v.mask_id = id_of(header, "mask");
  v.add_bos = header.boolean("tokenizer.ggml.add_bos_token");
  v.add_eos = header.boolean("tokenizer.ggml.add_eos_token");
  v.add_sep = header.boolean("tokenizer.ggml.add_sep_token");
  v.add_space_prefix = header.boolean("tokenizer.ggml.add_space_prefix");
  v.remove_extra_whitespaces = header.boolean("tokenizer.ggml.remove_extra_whitespaces");
  v.lowercase = header.boolean("tokenizer.ggml.normalizer.lowercase");
  v.strip_accents = header.boolean("tokenizer.ggml.normalizer.strip_accents");
  v.takes_space_behind = is_phi3(header, v.model);
  v.chat_templates = templates_of(header);
  return v;
}

}  // namespace tessera::text
