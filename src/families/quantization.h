#pragma once
// quantization_config of config.json: how the weights of a folder are packed, or shall be.
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::families {

/// bitsandbytes' 4-bit weights, its 8-bit ones (LLM.int8()), and the 4- or 8-bit codes in groups of GPTQ and AWQ.
enum class PackedForm { kFourBit, kInt8, kGptq, kAwq };

/// By transformers' names.
struct Quantization {
  PackedForm form = PackedForm::kFourBit;
  std::string quant_type = "nf4";  // 4 bits: nf4, fp4
  bool double_quant = false;
  std::string quant_storage = "uint8";  // dtype of the codes' bytes in files: uint8, bfloat16, float16, float32
  std::string compute_dtype = "float32";
  double int8_threshold = 6.0;  // inputs of this magnitude are outliers, whose columns are not rounded; 0: none are
  /// Modules that stay dense, parts of names; unset: the output head (transformers takes a list in place of that).
  std::optional<std::vector<std::string>> skip_modules = {};
  bool gptq_v2 = false;  // GPTQ: zero points are stored as they are, not less one
  /// GPTQ, AWQ: of all layers; 0: layers differ, or nothing is said.
  std::int64_t bits = 0, group_size = 0;
};

/// "4 bits", "8 bits (LLM.int8)", "GPTQ", "AWQ".
std::string form_name(PackedForm form);

/// Nothing: the key is missing, null or empty. ConfigError for other methods than these, and for settings of theirs
/// whose weights are not read.
std::optional<Quantization> read_quantization(const nlohmann::json& config, const std::string& file);

/// Keys of quantization_config that are not known, with that name before them: "quantization_config.other".
std::vector<std::string> unknown_quantization_keys(const nlohmann::json& config);

/// The value of quantization_config that transformers writes and reads, of bitsandbytes' forms.
nlohmann::ordered_json quantization_json(const Quantization& quantization);

}  // namespace tessera::families
