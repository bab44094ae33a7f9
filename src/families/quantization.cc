#include "families/quantization.h"

#include "families/config_reader.h"

namespace tessera::families {
namespace {

constexpr const char* kKey = "quantization_config";

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw ConfigError(file + ": '" + kKey + "': " + why, kKey);
}

std::string one_of(const ConfigReader& in, const std::string& key, const std::string& fallback,
                   const std::vector<std::string>& known) {
  auto value = in.get<std::string>(key, fallback);
  if (value.starts_with("torch.")) value = value.substr(6);
  for (const auto& name : known)
    if (value == name) return value;
  std::string text;
  for (const auto& name : known) text += (text.empty() ? "" : ", ") + name;
  refuse(in.file(), "'" + key + "' is '" + value + "'; known are " + text);
}

}  // namespace

std::optional<Quantization> read_quantization(const nlohmann::json& config, const std::string& file) {
  const auto found = config.find(kKey);
  if (found == config.end() || found->is_null() || (found->is_object() && found->empty())) return std::nullopt;
  if (!found->is_object()) refuse(file, "is no object: " + found->dump());
  const ConfigReader in(*found, file);
  const auto method = in.get<std::string>("quant_method", "bitsandbytes");
  if (method != "bitsandbytes")
    refuse(file, "weights packed by '" + method + "' are not read; name the folder of the model they were made from");
  if (in.get("load_in_8bit", false))
    refuse(file, "8-bit weights (LLM.int8) are not read yet; name the folder of the model they were made from");
  if (!in.get("load_in_4bit", false)) refuse(file, "'load_in_4bit' is not true, and there is no other form here");
  Quantization q;
  q.quant_type = one_of(in, "bnb_4bit_quant_type", "fp4", {"nf4", "fp4"});
  q.double_quant = in.get("bnb_4bit_use_double_quant", false);
  q.quant_storage = one_of(in, "bnb_4bit_quant_storage", "uint8", {"uint8", "bfloat16", "float16", "float32"});
  q.compute_dtype = one_of(in, "bnb_4bit_compute_dtype", "float32", {"float32", "bfloat16", "float16"});
  q.skip_modules = in.get("llm_int8_skip_modules", std::vector<std::string>{});
  return q;
}

nlohmann::ordered_json quantization_json(const Quantization& q) {
  nlohmann::ordered_json skipped;  // null, unless there are some
  if (!q.skip_modules.empty()) skipped = q.skip_modules;
  return {{"_load_in_4bit", true},
          {"_load_in_8bit", false},
          {"bnb_4bit_compute_dtype", q.compute_dtype},
          {"bnb_4bit_quant_storage", q.quant_storage},
          {"bnb_4bit_quant_type", q.quant_type},
          {"bnb_4bit_use_double_quant", q.double_quant},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", skipped},
          {"llm_int8_threshold", 6.0},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"quant_method", "bitsandbytes"}};
}

}  // namespace tessera::families
