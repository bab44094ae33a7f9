#pragma once
// The decoder families: config.json -> DecoderConfig. Each honours every key of transformers' config class that changes
// the numbers, or refuses its value (ConfigError).
#include <nlohmann/json.hpp>
#include <string>

#include "families/decoder_config.h"

namespace tessera::families {

DecoderConfig parse_bloom(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_falcon(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_gemma(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_gemma2(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_gpt2(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_gpt_neox(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_gptj(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_llama(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_mistral(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_mixtral(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_opt(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_phi3(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_qwen2(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_qwen3(const nlohmann::json& json, const std::string& file);
DecoderConfig parse_smollm3(const nlohmann::json& json, const std::string& file);

}  // namespace tessera::families
