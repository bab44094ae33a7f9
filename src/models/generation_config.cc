#include <algorithm>

#include "base/json_text.h"
#include "base/open_file.h"
#include "families/config_reader.h"
#include "models/generation.h"

namespace tessera::models {
namespace {

using EarlyStopping = GenerationConfig::EarlyStopping;

EarlyStopping early_stopping_of(const families::ConfigReader& in, const nlohmann::json& json) {
  if (!in.has("early_stopping")) return EarlyStopping::kFalse;
  const auto& value = json["early_stopping"];
  if (value.is_boolean()) return value.get<bool>() ? EarlyStopping::kTrue : EarlyStopping::kFalse;
  if (value == "never") return EarlyStopping::kNever;
  throw ConfigError(in.file() + ": early_stopping is true, false or \"never\"; found " + json_text(value),
                    "early_stopping");
}

[[noreturn]] void refuse_method(const families::ConfigReader& in, const std::string& key) {
  throw ConfigError(in.file() + ": '" + key +
                        "' is not supported; leave it out (docs/guides/generate.md, \"What is not " +
                        "built\", says what there is instead)",
                    key);
}

// Options of other decoding methods; a value other than "off" would change the result.
void refuse_unknown_methods(const families::ConfigReader& in, const nlohmann::json& json) {
  for (const char* key :
       {"sequence_bias", "stop_strings", "penalty_alpha", "constraints", "force_words_ids",
        "encoder_no_repeat_ngram_size", "watermarking_config", "dola_layers", "max_time", "top_h", "token_healing"}) {
    if (in.has(key) && json[key] != 0 && json[key] != false) refuse_method(in, key);
  }
  // Other caches hold the same numbers.
  if (in.has("cache_implementation") && json["cache_implementation"] == "quantized")
    refuse_method(in, "cache_implementation");
  for (const char* key : {"num_beam_groups", "diversity_penalty", "encoder_repetition_penalty", "guidance_scale"}) {
    const double off = std::string_view(key) == "diversity_penalty" ? 0.0 : 1.0;
    if (in.get<double>(key, off) != off) refuse_method(in, key);
  }
}

/// A token, or a list of them.
std::vector<std::int64_t> tokens_at(const families::ConfigReader& in, const char* key) {
  if (in.at(key).is_array()) return in.get<std::vector<std::int64_t>>(key, {});
  return {in.token(key, 0)};
}

/// The same where no token has no meaning.
std::vector<std::int64_t> some_tokens_at(const families::ConfigReader& in, const char* key) {
  auto tokens = tokens_at(in, key);
  if (tokens.empty())
    throw ConfigError(in.file() + ": '" + key + "' is an empty list; name a token, or null where there is none", key);
  return tokens;
}

void read_end_tokens(const families::ConfigReader& in, GenerationConfig& c) {
  if (!in.contains("eos_token_id")) return;
  c.eos_token_ids = in.has("eos_token_id") ? tokens_at(in, "eos_token_id") : std::vector<std::int64_t>();
}

void read_filters(const families::ConfigReader& in, const nlohmann::json& json, GenerationConfig& c) {
  c.do_sample = in.get<bool>("do_sample", c.do_sample);
  c.temperature = in.get<double>("temperature", c.temperature);
  if (in.contains("top_k")) c.top_k = in.get<std::int64_t>("top_k", 0);  // null: no filter
  c.top_p = in.get<double>("top_p", c.top_p);
  if (in.has("min_p")) c.min_p = in.get<double>("min_p", 0.0);
  c.typical_p = in.get<double>("typical_p", c.typical_p);
  c.epsilon_cutoff = in.get<double>("epsilon_cutoff", c.epsilon_cutoff);
  c.eta_cutoff = in.get<double>("eta_cutoff", c.eta_cutoff);
  c.bad_words_ids = in.get<std::vector<std::vector<std::int64_t>>>("bad_words_ids", c.bad_words_ids);
  c.suppress_tokens = in.get<std::vector<std::int64_t>>("suppress_tokens", c.suppress_tokens);
  c.begin_suppress_tokens = in.get<std::vector<std::int64_t>>("begin_suppress_tokens", c.begin_suppress_tokens);
  if (in.has("forced_bos_token_id")) c.forced_bos_token_id = in.token("forced_bos_token_id", 0);
  if (in.has("forced_eos_token_id")) c.forced_eos_token_ids = some_tokens_at(in, "forced_eos_token_id");
  c.renormalize_logits = in.get<bool>("renormalize_logits", c.renormalize_logits);
  if (!in.has("exponential_decay_length_penalty")) return;
  const auto& decay = json["exponential_decay_length_penalty"];
  if (!decay.is_array() || decay.size() != 2 || !decay[0].is_number() || !decay[1].is_number()) {
    throw ConfigError(in.file() + ": exponential_decay_length_penalty is [start, factor], found " + json_text(decay),
                      "exponential_decay_length_penalty");
  }
  c.exponential_decay_length_penalty = {decay[0].get<std::int64_t>(), decay[1].get<double>()};
}

// What a file has for max_length when nobody chose it: as many new tokens, as in transformers.
constexpr std::int64_t kDefaultLength = 20;

void read_file_of_model(const std::string& file, GenerationConfig& c) {
  read_generation_json(families::read_json(file), file, c);
  if (c.max_length == kDefaultLength) c.max_length = 0;
}

}  // namespace

GenerationConfig read_generation_config(const std::string& folder, const ModelConfig& model) {
  GenerationConfig c;
  c.max_positions = model.max_positions > 0 ? model.max_positions : model.known_positions;
  c.decoder_start_token_ids = {model.decoder_start_token_id};
  const auto model_file = folder + "/config.json", file = folder + "/generation_config.json";
  if (is_there(file)) {
    c.eos_token_ids.clear();
    c.pad_token_id = -1;
    read_file_of_model(file, c);
    if (c.pad_token_id < 0) c.pad_token_id = c.eos_token_ids.empty() ? model.pad_token_id : c.eos_token_ids[0];
    return c;
  }
  c.eos_token_ids = {model.eos_token_id};
  c.pad_token_id = model.pad_token_id;
  if (is_there(model_file)) read_file_of_model(model_file, c);  // as files once were
  if (c.pad_token_id < 0) c.pad_token_id = model.pad_token_id;
  return c;
}

std::int64_t most_tokens(const GenerationConfig& c, std::int64_t prompt_tokens) {
  if (c.max_new_tokens > 0) return prompt_tokens + c.max_new_tokens;
  if (c.max_length > 0) return std::max(prompt_tokens, c.max_length);
  const auto most = prompt_tokens + kDefaultLength;
  return c.max_positions > 0 ? std::max(prompt_tokens, std::min(most, c.max_positions)) : most;
}

void read_generation_json(const nlohmann::json& json, const std::string& file, GenerationConfig& c) {
  const families::ConfigReader in(json, file);
  refuse_unknown_methods(in, json);
  read_filters(in, json, c);
  c.max_new_tokens = in.get<std::int64_t>("max_new_tokens", c.max_new_tokens);
  if (in.has("max_length")) c.max_length = in.positive("max_length", 1);
  if (in.has("min_new_tokens")) c.min_new_tokens = in.get<std::int64_t>("min_new_tokens", 0);
  c.min_length = in.get<std::int64_t>("min_length", c.min_length);
  c.num_beams = in.positive("num_beams", c.num_beams);
  c.num_return_sequences = in.positive("num_return_sequences", c.num_return_sequences);
  c.length_penalty = in.get<double>("length_penalty", c.length_penalty);
  c.repetition_penalty = in.get<double>("repetition_penalty", c.repetition_penalty);
  c.no_repeat_ngram_size = in.get<std::int64_t>("no_repeat_ngram_size", c.no_repeat_ngram_size);
  if (in.has("early_stopping")) c.early_stopping = early_stopping_of(in, json);
  c.pad_token_id = in.token("pad_token_id", c.pad_token_id);
  if (in.has("decoder_start_token_id")) c.decoder_start_token_ids = some_tokens_at(in, "decoder_start_token_id");
  read_end_tokens(in, c);
}

}  // namespace tessera::models
