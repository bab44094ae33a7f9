#include "models/gguf_t5.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "families/config_reader.h"
#include "models/gguf_keys.h"
#include "models/gguf_names.h"

namespace tessera::models {
namespace {

using families::T5Config;

/// What llama.cpp computes, whatever a file says.
constexpr std::int64_t kFarthestDistance = 128;

/// A size in the file, in config.json and here.
struct Size {
  const char* stored;
  const char* name;
  std::int64_t T5Config::* value;
};
constexpr Size kSizes[] = {
    {"embedding_length", "d_model", &T5Config::d_model},
    {"feed_forward_length", "d_ff", &T5Config::d_ff},
    {"block_count", "num_layers", &T5Config::num_layers},
    {"decoder_block_count", "num_decoder_layers", &T5Config::num_decoder_layers},
    {"attention.head_count", "num_heads", &T5Config::num_heads},
    {"attention.key_length", "d_kv", &T5Config::d_kv},
    {"attention.relative_buckets_count", "relative_attention_num_buckets", &T5Config::relative_buckets},
    {"decoder_start_token_id", "decoder_start_token_id", &T5Config::decoder_start_token_id}};
constexpr Size kLongestRow = {"context_length", "n_positions", nullptr};  // no module has it

void check(const T5Config& c) {
  if (c.activation != (c.gated ? Activation::kGeluTanh : Activation::kRelu))
    refuse_in_gguf(fmt::format("this feed_forward_proj: readers compute {}", c.gated ? "gated-gelu" : "relu"));
  if (c.relative_max_distance != kFarthestDistance)
    refuse_in_gguf(
        fmt::format("relative_attention_max_distance {}: readers take {}", c.relative_max_distance, kFarthestDistance));
}

double scale_of(const T5Config& c) {
  return std::pow(static_cast<double>(c.d_model), -0.5);
}

}  // namespace

GgufSubject gguf_t5_subject(const T5Config& c) {
  return {.family = gguf_family(c),
          .model_type = "t5",
          .head = "lm_head",
          .tied = c.tied,
          .copies_head = !c.scales_head,  // a tied one is taken for a scaled one
          .head_scale = c.scales_head ? scale_of(c) : 1,
          .heads = {c.num_heads, c.num_heads},
          .layers = c.num_layers,
          .vocab_size = c.vocab_size};
}

GgufExport gguf_t5_keys(const T5Config& c, const nlohmann::json& json) {
  check(c);
  GgufExport out;
  out.architecture = "t5";
  if (c.tied && c.scales_head)
    out.note = fmt::format(
        "readers of the file leave out T5's scaling of a tied head: greedy answers are the same, drawing needs {:.4g} "
        "times the temperature\n",
        1 / scale_of(c));
  const auto add = [&](const char* key, io::GgufItem value) {
    out.metadata.emplace_back(out.architecture + "." + key, std::move(value));
  };
  const auto add_size = [&](const char* key, std::int64_t value) { add(key, static_cast<std::uint32_t>(value)); };
  constexpr std::int64_t kUsualRow = 512;
  add_size(kLongestRow.stored, families::ConfigReader(json, "config.json").get(kLongestRow.name, kUsualRow));
  for (const Size& size : kSizes) add_size(size.stored, c.*size.value);
  add_size("attention.value_length", c.d_kv);
  for (const char* key : {"attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"})
    add(key, static_cast<float>(c.norm_eps));
  return out;
}

nlohmann::json gguf_t5_config(const io::GgufFile& file) {
  const auto& header = file.header();
  nlohmann::json out;
  const bool has_bias_in_every_layer = file.find("enc.blk.1.attn_rel_b.weight");
  out["model_type"] = has_bias_in_every_layer ? "umt5" : "t5";
  const auto read = [&](const Size& size) {
    if (const auto value = header.integer(std::string("t5.") + size.stored)) out[size.name] = *value;
  };
  read(kLongestRow);
  for (const Size& size : kSizes) read(size);
  if (!out.contains("num_decoder_layers") && out.contains("num_layers")) out["num_decoder_layers"] = out["num_layers"];
  if (const auto eps = header.number("t5.attention.layer_norm_rms_epsilon")) out["layer_norm_epsilon"] = *eps;
  out["relative_attention_max_distance"] = kFarthestDistance;
  out["feed_forward_proj"] = gguf_family(file) == "t5" ? "relu" : "gated-gelu";
  out["is_encoder_decoder"] = true;
  return out;
}

}  // namespace tessera::models
