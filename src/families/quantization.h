#pragma once
// quantization_config of config.json: how the weights of a folder are packed, or shall be.
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::families {

/// bitsandbytes' 4-bit weights, by transformers' names.
struct Quantization {
  std::string quant_type = "nf4";  // nf4, fp4
  bool double_quant = false;
  std::string quant_storage = "uint8";  // dtype of the codes' bytes in files: uint8, bfloat16, float16, float32
  std::string compute_dtype = "float32";
  std::vector<std::string> skip_modules = {};  // ends of names, besides the output head
};

/// Nothing: the key is missing, null or empty. ConfigError for other methods than bitsandbytes' 4-bit one.
std::optional<Quantization> read_quantization(const nlohmann::json& config, const std::string& file);

/// The value of quantization_config that transformers writes and reads.
nlohmann::ordered_json quantization_json(const Quantization& quantization);

}  // namespace tessera::families
