#include "families/quantization.h"

#include <algorithm>
#include <cctype>

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

std::string method_of(const ConfigReader& in) {
  return in.get<std::string>("quant_method", "bitsandbytes");
}

std::optional<std::vector<std::string>> names(const ConfigReader& in, const std::string& key) {
  if (!in.has(key)) return std::nullopt;
  return in.get(key, std::vector<std::string>{});
}

Quantization read_bitsandbytes(const ConfigReader& in) {
  const bool four = in.get("load_in_4bit", false), eight = in.get("load_in_8bit", false);
  if (four && eight) refuse(in.file(), "'load_in_4bit' and 'load_in_8bit' are both true; keep one");
  if (!four && !eight) refuse(in.file(), "neither 'load_in_4bit' nor 'load_in_8bit' is true; there is no other form");
  if (in.get("llm_int8_has_fp16_weight", false))
    refuse(in.file(), "'llm_int8_has_fp16_weight' keeps 16-bit weights, which are not packed: leave the key out");
  Quantization q;
  q.form = four ? PackedForm::kFourBit : PackedForm::kInt8;
  q.quant_type = one_of(in, "bnb_4bit_quant_type", "fp4", {"nf4", "fp4"});
  q.double_quant = in.get("bnb_4bit_use_double_quant", false);
  q.quant_storage = one_of(in, "bnb_4bit_quant_storage", "uint8", {"uint8", "bfloat16", "float16", "float32"});
  q.compute_dtype = one_of(in, "bnb_4bit_compute_dtype", "float32", {"float32", "bfloat16", "float16"});
  q.int8_threshold = in.get("llm_int8_threshold", 6.0);
  if (!(q.int8_threshold >= 0)) refuse(in.file(), "'llm_int8_threshold' is a magnitude: at least 0");
  q.skip_modules = names(in, "llm_int8_skip_modules");
  return q;
}

void check_bits(const ConfigReader& in, const std::vector<std::int64_t>& known) {
  const auto bits = in.get<std::int64_t>("bits", 4);
  if (std::find(known.begin(), known.end(), bits) == known.end())
    refuse(in.file(), "codes of " + std::to_string(bits) + " bits; " + (known.size() > 1 ? "2, 4 and 8 are" : "4 is") +
                          " read; name the folder of the model they were made from");
}

void read_groups(const ConfigReader& in, Quantization& q) {
  if (in.has("dynamic")) return;  // layers with settings of their own
  if (in.has("bits")) q.bits = in.get<std::int64_t>("bits", 0);
  q.group_size = std::max<std::int64_t>(0, in.get<std::int64_t>("group_size", 0));  // -1: one group
}

/// In small letters. transformers 5 writes `format`; the older key counts where both are there.
std::string format_of(const ConfigReader& in, const std::string& older, const std::string& fallback) {
  auto format = in.get<std::string>("format", fallback);
  format = in.get<std::string>(older, format);
  std::transform(format.begin(), format.end(), format.begin(), [](unsigned char c) { return std::tolower(c); });
  return format;
}

Quantization read_gptq(const ConfigReader& in) {
  check_bits(in, {2, 4, 8});
  if (in.get("is_marlin_format", false)) refuse(in.file(), "weights in Marlin's order are not read; save them as gptq");
  Quantization q;
  q.form = PackedForm::kGptq;
  read_groups(in, q);
  const auto format = format_of(in, "checkpoint_format", "gptq");
  q.gptq_v2 = format == "gptq_v2";
  if (!q.gptq_v2 && format != "gptq")
    refuse(in.file(), "'checkpoint_format' (or 'format') is '" + format + "'; known are gptq, gptq_v2");
  return q;
}

Quantization read_awq(const ConfigReader& in) {
  check_bits(in, {4});
  const auto version = format_of(in, "version", "gemm");
  if (version != "gemm") refuse(in.file(), "AWQ's layout '" + version + "' is not read; save the model as gemm");
  if (!in.get("zero_point", true)) refuse(in.file(), "AWQ without zero points is not read; save it with zero_point");
  Quantization q;
  q.form = PackedForm::kAwq;
  read_groups(in, q);
  q.skip_modules = names(in, "modules_to_not_convert");
  return q;
}

/// Keys that change nothing that is read here: what a quantiser was told, and which kernels to take.
const std::vector<std::string>& known_keys(const std::string& method) {
  static const std::vector<std::string> kBitsandbytes = {"load_in_4bit",
                                                         "load_in_8bit",
                                                         "_load_in_4bit",
                                                         "_load_in_8bit",
                                                         "llm_int8_threshold",
                                                         "llm_int8_skip_modules",
                                                         "llm_int8_enable_fp32_cpu_offload",
                                                         "llm_int8_has_fp16_weight",
                                                         "bnb_4bit_compute_dtype",
                                                         "bnb_4bit_quant_type",
                                                         "bnb_4bit_use_double_quant",
                                                         "bnb_4bit_quant_storage",
                                                         "quant_method"},
                                        kGptq = {"bits",
                                                 "group_size",
                                                 "desc_act",
                                                 "sym",
                                                 "checkpoint_format",
                                                 "format",
                                                 "act_group_aware",
                                                 "quant_method",
                                                 "static_groups",
                                                 "true_sequential",
                                                 "damp_percent",
                                                 "damp_auto_increment",
                                                 "lm_head",
                                                 "dataset",
                                                 "tokenizer",
                                                 "model_seqlen",
                                                 "model_name_or_path",
                                                 "model_file_base_name",
                                                 "meta",
                                                 "is_marlin_format",
                                                 "block_name_to_quantize",
                                                 "modules_in_block_to_quantize",
                                                 "module_name_preceding_first_block",
                                                 "backend",
                                                 "use_cuda_fp16",
                                                 "use_exllama",
                                                 "disable_exllama",
                                                 "exllama_config",
                                                 "max_input_length",
                                                 "cache_block_outputs",
                                                 "pad_token_id",
                                                 "batch_size",
                                                 "pack_dtype",
                                                 "dynamic",
                                                 "quantizer"},
                                        kAwq = [] {
                                          auto keys = kGptq;  // transformers 5 writes them, too
                                          for (const char* key :
                                               {"zero_point", "version", "modules_to_not_convert", "do_fuse",
                                                "fuse_max_seq_len", "modules_to_fuse", "w_bit", "q_group_size"})
                                            keys.emplace_back(key);
                                          return keys;
                                        }();
  return method == "gptq" ? kGptq : method == "awq" ? kAwq : kBitsandbytes;
}

}  // namespace

std::string form_name(PackedForm form) {
  switch (form) {
    case PackedForm::kFourBit:
      return "4 bits";
    case PackedForm::kInt8:
      return "8 bits (LLM.int8)";
    case PackedForm::kGptq:
      return "GPTQ";
    case PackedForm::kAwq:
      break;
  }
  return "AWQ";
}

std::optional<Quantization> read_quantization(const nlohmann::json& config, const std::string& file) {
  const auto found = config.find(kKey);
  if (found == config.end() || found->is_null() || (found->is_object() && found->empty())) return std::nullopt;
  if (!found->is_object()) refuse(file, "is no object: " + found->dump());
  const ConfigReader in(*found, file);
  const auto method = method_of(in);
  if (method == "bitsandbytes") return read_bitsandbytes(in);
  if (method == "gptq") return read_gptq(in);
  if (method == "awq") return read_awq(in);
  refuse(file, "weights packed by '" + method + "' are not read; known are bitsandbytes, gptq and awq. Name the " +
                   "folder of the model they were made from");
}

std::vector<std::string> unknown_quantization_keys(const nlohmann::json& config) {
  const auto found = config.find(kKey);
  if (found == config.end() || !found->is_object()) return {};
  const auto& known = known_keys(method_of(ConfigReader(*found, "")));
  std::vector<std::string> unknown;
  for (const auto& [key, value] : found->items())
    if (std::find(known.begin(), known.end(), key) == known.end()) unknown.push_back(std::string(kKey) + "." + key);
  return unknown;
}

nlohmann::ordered_json quantization_json(const Quantization& q) {
  const bool four = q.form == PackedForm::kFourBit;
  nlohmann::ordered_json skipped;  // null, unless there are some
  if (q.skip_modules) skipped = *q.skip_modules;
  return {{"_load_in_4bit", four},
          {"_load_in_8bit", !four},
          {"bnb_4bit_compute_dtype", four ? q.compute_dtype : "float32"},
          {"bnb_4bit_quant_storage", four ? q.quant_storage : "uint8"},
          {"bnb_4bit_quant_type", four ? q.quant_type : "fp4"},
          {"bnb_4bit_use_double_quant", four && q.double_quant},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_skip_modules", skipped},
          {"llm_int8_threshold", q.int8_threshold},
          {"load_in_4bit", four},
          {"load_in_8bit", !four},
          {"quant_method", "bitsandbytes"}};
}

}  // namespace tessera::families
