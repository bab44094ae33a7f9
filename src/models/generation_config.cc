#include <algorithm>
#include <filesystem>

#include "models/config_reader.h"
#include "models/generation.h"

namespace tessera::models {
namespace {

using EarlyStopping = GenerationConfig::EarlyStopping;

EarlyStopping early_stopping_of(const ConfigReader& in, const nlohmann::json& json) {
  if (!in.has("early_stopping")) return EarlyStopping::kFalse;
  const auto& value = json["early_stopping"];
  if (value.is_boolean()) return value.get<bool>() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  if (value == "never") return EarlyStopping::kNever;
  throw ConfigError(in.file() + ": early_stopping is true, false or \"never\"; found " + value.dump(),
                    "early_stopping");
}

// Options of other decoding methods; a value other than "off" would change the result.
void refuse_unknown_methods(const ConfigReader& in, const nlohmann::json& json) {
  if (in.get<bool>("do_sample", false)) {
    throw ConfigError(in.file() + ": do_sample is not supported; greedy and beam search are", "do_sample");
  }
  for (const char* key : {"bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id",
                          "forced_eos_token_id", "exponential_decay_length_penalty", "sequence_bias", "penalty_alpha",
                          "constraints", "force_words_ids", "encoder_no_repeat_ngram_size"}) {
    if (in.has(key) && json[key] != 0) throw ConfigError(in.file() + ": '" + key + "' is not supported", key);
  }
  for (const char* key : {"num_beam_groups", "diversity_penalty", "encoder_repetition_penalty"}) {
    const double off = std::string_view(key) == "diversity_penalty" ? 0.0 : 1.0;
    if (in.get<double>(key, off) != off) throw ConfigError(in.file() + ": '" + key + "' is not supported", key);
  }
}

}  // namespace

GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& model) {
  GenerationConfig c;
  c.eos_token_ids = {model.eos_token_id};
  c.pad_token_id = model.pad_token_id;
  c.decoder_start_token_id = model.decoder_start_token_id;
  const auto file = folder + "/generation_config.json";
  if (!std::filesystem::exists(file)) return c;
  const auto json = read_json(file);
  const ConfigReader in(json, file);
  refuse_unknown_methods(in, json);
  c.max_new_tokens = in.get<std::int64_t>("max_new_tokens", 0);
  c.max_length = in.positive("max_length", c.max_length);
  c.min_new_tokens = in.get<std::int64_t>("min_new_tokens", 0);
  c.min_length = in.get<std::int64_t>("min_length", 0);
  c.num_beams = in.positive("num_beams", 1);
  c.num_return_sequences = in.positive("num_return_sequences", 1);
  c.length_penalty = in.get<double>("length_penalty", 1.0);
  c.repetition_penalty = in.get<double>("repetition_penalty", 1.0);
  c.no_repeat_ngram_size = in.get<std::int64_t>("no_repeat_ngram_size", 0);
  c.early_stopping = early_stopping_of(in, json);
  c.pad_token_id = in.token("pad_token_id", c.pad_token_id);
  c.decoder_start_token_id = in.token("decoder_start_token_id", c.decoder_start_token_id);
  if (in.has("eos_token_id")) {
    c.eos_token_ids = json["eos_token_id"].is_array() ? in.get<std::vector<std::int64_t>>("eos_token_id", {})
                                                      : std::vector<std::int64_t>{in.token("eos_token_id", 1)};
  }
  return c;
}

}  // namespace tessera::models
