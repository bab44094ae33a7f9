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
constexpr const char* kDeepSeekLetters =  // those that have case
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+";
constexpr const char* kDeepSeekSigns = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";
constexpr const char* kDeepSeekEastAsian = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
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
  parts.push_back(json_split("[0-9][0-9][0-9]"));
  return {nullptr, {{"type", "Sequence"}, {"pretokenizers", parts}}};
}
/// One cut after another, and each digit by itself.
GgufPre deepseek(const std::vector<const char*>& patterns) {
  auto parts = json::array();
  for (const char* pattern : patterns) parts.push_back(json_split(pattern));
  parts.push_back({{"type", "Digits"}, {"individual_digits", true}});
  parts.push_back(json_byte_level(false, true, false));
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
        "jina-v2-de", "jina-v2-code", "gigachat", "trillion", "granite-docling", "a.x-4.0", "mellum"},
       gpt2},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "pixtral", "midm-2.0"}, llama3},
      {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, [] { return by_pattern(kLlama3Pattern, false); }},
      {{"qwen2", "stablelm2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"}, qwen2},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}, digits_apart},
      {{"falcon"}, falcon},
      {{"bloom", "poro-chat", "gpt3-finnish"}, [] { return by_pattern(kBloomPattern, false); }},
      {{"gpt-4o", "llama4"}, [] { return by_pattern(kGpt4oPattern, false); }},
      {{"deepseek-llm"},
       [] { return deepseek({"[\r\n]", kDeepSeekLetters, kDeepSeekSigns, "\\s+$", kDeepSeekEastAsian}); }},
      {{"deepseek-coder"}, [] { return deepseek({"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepSeekEastAsian}); }},
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
