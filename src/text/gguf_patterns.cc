#include "text/gguf_patterns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <vector>

#include "tessera/base/error.h"
#include "text/json_forms.h"

namespace tessera::text {
namespace {

using nlohmann::json;

constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kBloomPattern = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+";

json sequence(json first, json second) {
  return {{"type", "Sequence"}, {"pretokenizers", json::array({std::move(first), std::move(second)})}};
}

GgufPre gpt2() {
  return {nullptr, json_byte_level(false, true, true)};
}
GgufPre llama3() {
  return {nullptr, json_split_then_byte_level(kLlama3Pattern), true, true};
}
GgufPre qwen2() {
  return {{{"type", "NFC"}}, json_split_then_byte_level(kQwen2Pattern)};
}
GgufPre digits_apart() {
  return {nullptr, sequence({{"type", "Digits"}, {"individual_digits", true}}, json_byte_level(false, true, true))};
}
GgufPre falcon() {
  auto parts = json::array();
  parts.push_back({{"type", "Punctuation"}, {"behavior", "Contiguous"}});
  parts.push_back(json_byte_level(false, true, true));
  parts.push_back({{"type", "Digits"}, {"individual_digits", false}});
  parts.push_back(
      {{"type", "Split"}, {"pattern", {{"Regex", "[0-9][0-9][0-9]"}}}, {"behavior", "Isolated"}, {"invert", false}});
  return {nullptr, {{"type", "Sequence"}, {"pretokenizers", parts}}};
}
GgufPre by_pattern(const char* pattern, bool ignore_merges, bool add_bos = false) {
  return {nullptr, json_split_then_byte_level(pattern), ignore_merges, add_bos};
}

struct Entry {
  std::vector<const char*> names;
  std::function<GgufPre()> make;
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> table = {
      {{"default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "jina-es", "jina-de", "jina-v2-es",
        "jina-v2-de", "jina-v2-code", "gigachat", "trillion", "granite-docling"},
       gpt2},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"}, llama3},
      {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, [] { return by_pattern(kLlama3Pattern, false); }},
      {{"qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"}, qwen2},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, digits_apart},
      {{"falcon"}, falcon},
      {{"bloom", "poro-chat", "gpt3-finnish"}, [] { return by_pattern(kBloomPattern, false); }},
      {{"gpt-4o", "llama4"}, [] { return by_pattern(kGpt4oPattern, false); }},
      {{"tekken"}, [] { return by_pattern(kTekkenPattern, true, true); }},
  };
  return table;
}

/// With the defaults that tokenizer.json may leave out, without what changes no ids.
json canonical(json stage) {
  if (stage.is_array())
    for (auto& part : stage) part = canonical(part);
  if (!stage.is_object()) return stage;
  if (stage.value("type", "") == "ByteLevel") {
    stage.erase("trim_offsets");
    stage["use_regex"] = stage.value("use_regex", true);
    stage["add_prefix_space"] = stage.value("add_prefix_space", true);
  }
  if (stage.contains("pretokenizers")) stage["pretokenizers"] = canonical(stage["pretokenizers"]);
  return stage;
}

}  // namespace

GgufPre gguf_pre(const std::string& name, const std::string& where) {
  std::vector<std::string> known;
  for (const auto& entry : entries())
    for (const char* one : entry.names) {
      if (name == one || (name.empty() && std::string(one) == "default")) return entry.make();
      known.emplace_back(one);
    }
  throw DataError(
      fmt::format("{}: unknown tokenizer.ggml.pre \"{}\"; known are {}. Put the model's tokenizer.json beside "
                  "the file",
                  where, name, fmt::join(known, ", ")));
}

std::string gguf_pre_name(const json& normalizer, const json& pre_tokenizer, bool ignore_merges) {
  const json no_stages = {{"type", "Sequence"}, {"normalizers", json::array()}};  // SmolLM2's
  for (const auto& entry : entries()) {
    const GgufPre pre = entry.make();
    if (pre.normalizer == (normalizer == no_stages ? json() : normalizer) &&
        canonical(pre.pre_tokenizer) == canonical(pre_tokenizer) && pre.ignore_merges == ignore_merges)
      return std::string(entry.names[0]) == "default" ? "gpt-2" : entry.names[0];
  }
  throw DataError("--gguf: the way in which this tokenizer cuts words has no name in the format (tokenizer.ggml.pre)");
}

}  // namespace tessera::text
