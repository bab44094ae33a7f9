#pragma once
// The decoder families: config.json -> DecoderConfig. Each honours every key of transformers' config class that changes
// the numbers, or refuses its value (ConfigError).
#include "families/config_reader.h"
#include "families/decoder_config.h"

namespace tessera::families {

DecoderConfig parse_bloom(const ConfigReader& in);
DecoderConfig parse_falcon(const ConfigReader& in);
DecoderConfig parse_gemma(const ConfigReader& in);
DecoderConfig parse_gemma2(const ConfigReader& in);
DecoderConfig parse_gemma3(const ConfigReader& in);
DecoderConfig parse_glm(const ConfigReader& in);
DecoderConfig parse_glm4(const ConfigReader& in);
DecoderConfig parse_gpt2(const ConfigReader& in);
DecoderConfig parse_gpt_bigcode(const ConfigReader& in);
DecoderConfig parse_gpt_neo(const ConfigReader& in);
DecoderConfig parse_gpt_neox(const ConfigReader& in);
DecoderConfig parse_gptj(const ConfigReader& in);
DecoderConfig parse_granite(const ConfigReader& in);
DecoderConfig parse_llama(const ConfigReader& in);
DecoderConfig parse_mistral(const ConfigReader& in);
DecoderConfig parse_mixtral(const ConfigReader& in);
DecoderConfig parse_olmo(const ConfigReader& in);
DecoderConfig parse_olmo2(const ConfigReader& in);
DecoderConfig parse_olmoe(const ConfigReader& in);
DecoderConfig parse_opt(const ConfigReader& in);
DecoderConfig parse_phi(const ConfigReader& in);
DecoderConfig parse_phi3(const ConfigReader& in);
DecoderConfig parse_qwen2(const ConfigReader& in);
DecoderConfig parse_qwen2_moe(const ConfigReader& in);
DecoderConfig parse_qwen3(const ConfigReader& in);
DecoderConfig parse_qwen3_moe(const ConfigReader& in);
DecoderConfig parse_smollm3(const ConfigReader& in);
DecoderConfig parse_stablelm(const ConfigReader& in);
DecoderConfig parse_starcoder2(const ConfigReader& in);

}  // namespace tessera::families
