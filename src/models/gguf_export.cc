#include "models/gguf_export.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/gguf_blocks.h"
#include "models/gguf_layout.h"
#include "models/gguf_names.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

constexpr std::uint32_t kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14;

std::uint32_t u32(std::int64_t value) {
  return static_cast<std::uint32_t>(value);
}

/// The next type whose blocks divide the rows.
std::uint32_t fitting(std::uint32_t type, std::int64_t columns) {
  const io::GgufBlock* block = io::gguf_block(type);
  if (!block || columns % block->elements == 0) return type;
  const std::uint32_t next = type == kQ4_K ? kQ5_0 : type == kQ5_K ? kQ5_1 : type == kQ6_K ? kQ8_0 : io::kGgufF16;
  return fitting(next, columns);
}

/// Like llama-quantize's: the first and last eighth of the layers, and every third between.
bool gets_more_bits(std::int64_t layer, std::int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

class Planner {
 public:
  Planner(const families::DecoderConfig& config, const io::TensorSource& weights, GgufForm form)
      : c_(config), weights_(weights), form_(form) {}

  GgufExport plan() {
    refuse_what_has_no_key();
    out_.architecture = c_.model_type == "mistral" ? "llama" : c_.model_type;
    if (c_.model_type == "gpt2")
      add_gpt2_keys();
    else
      add_llama_keys();
    has_head_ = !c_.tied && std::any_of(weights_.tensors().begin(), weights_.tensors().end(),
                                        [](const auto& t) { return t.name == "lm_head.weight"; });
    for (const io::TensorInfo& info : weights_.tensors()) add_tensor(info);
    return std::move(out_);
  }

 private:
  void add(const std::string& key, io::GgufItem value) {
    out_.metadata.emplace_back(out_.architecture + "." + key, std::move(value));
  }

  [[noreturn]] static void refuse(const std::string& what) {
    throw ConfigError("--gguf: the file has no key for " + what, "gguf");
  }

  /// What readers of the file take for granted.
  void refuse_what_has_no_key() {
    const bool is_gpt2 = c_.model_type == "gpt2";
    if (c_.activation != (is_gpt2 ? Activation::kGeluTanh : Activation::kSilu))
      refuse(
          fmt::format("the activation of this {}: readers compute {}", c_.model_type, is_gpt2 ? "gelu_new" : "silu"));
    const double usual = std::pow(static_cast<double>(c_.head_dim), -0.5);
    if (std::any_of(c_.attention_scale.begin(), c_.attention_scale.end(), [&](double s) { return s != usual; }))
      refuse("scale_attn_weights false and scale_attn_by_inverse_layer_idx true");
    std::int64_t window = 0;
    for (const std::int64_t of_layer : c_.attention_window) window = std::max(window, of_layer);
    if (window > 0 && window < c_.max_positions)
      out_.note = fmt::format(
          "the file has no key for the sliding window of {} tokens: in longer rows its readers attend to all\n",
          window);
  }

  void add_gpt2_keys() {
    add("block_count", u32(c_.num_layers));
    add("context_length", u32(c_.max_positions));
    add("embedding_length", u32(c_.hidden_size));
    add("feed_forward_length", u32(c_.intermediate_size));
    add("attention.head_count", u32(c_.num_heads));
    add("attention.layer_norm_epsilon", static_cast<float>(c_.norm_eps));
  }

  void add_llama_keys() {
    const bool is_llama = out_.architecture == "llama";
    add("block_count", u32(c_.num_layers));
    add("context_length", u32(c_.max_positions));
    add("embedding_length", u32(c_.hidden_size));
    add("feed_forward_length", u32(c_.intermediate_size));
    add("attention.head_count", u32(c_.num_heads));
    add("attention.head_count_kv", u32(c_.num_kv_heads));
    add("rope.freq_base", static_cast<float>(c_.rotary.theta));
    add("attention.layer_norm_rms_epsilon", static_cast<float>(c_.norm_eps));
    if (c_.model_type == "llama" || c_.head_dim * c_.num_heads != c_.hidden_size) {
      add("attention.key_length", u32(c_.head_dim));
      add("attention.value_length", u32(c_.head_dim));
    }
    if (is_llama) {
      add("vocab_size", u32(c_.vocab_size));
      add("rope.dimension_count", u32(c_.rotary.dims));
    }
    add_scaling(is_llama);
  }

  void add_scaling(bool is_llama) {
    using families::RopeScaling;
    const auto scaling = c_.rotary.scaling;
    if (is_llama && scaling == RopeScaling::kLinear) {
      add("rope.scaling.type", std::string("linear"));
      add("rope.scaling.factor", static_cast<float>(c_.rotary.factor));
    } else if (!is_llama && scaling == RopeScaling::kYarn) {
      const families::RotarySettings& r = c_.rotary;
      const double usual_factor = r.factor <= 1 ? 1 : 0.1 * std::log(r.factor) + 1;
      const bool is_usual = r.beta_fast == families::RotarySettings().beta_fast &&
                            r.beta_slow == families::RotarySettings().beta_slow && r.truncate &&
                            std::abs(r.table_factor - usual_factor) < 1e-9;
      if (!is_usual) refuse("beta_fast, beta_slow, truncate, mscale and attention_factor of yarn: leave them out");
      add("rope.scaling.type", std::string("yarn"));
      add("rope.scaling.factor", static_cast<float>(c_.rotary.factor));
      add("rope.scaling.original_context_length", u32(c_.rotary.original_positions));
    } else if (is_llama && scaling == RopeScaling::kLlama3) {
      add_llama3_divisors();
    } else if (scaling != RopeScaling::kNone) {
      throw ConfigError("--gguf: the file has no key for this rope_scaling of " + c_.model_type +
                            "; linear and llama3 (llama), yarn (qwen2) are written",
                        "gguf");
    }
  }

  /// What the frequencies are divided by.
  void add_llama3_divisors() {
    const auto& r = c_.rotary;
    ExportedTensor tensor;
    tensor.plan = {"rope_freqs.weight", {r.dims / 2}, io::kGgufF32};
    for (std::int64_t i = 0; i < r.dims / 2; ++i) {
      const double turns = static_cast<double>(r.original_positions) *
                           std::pow(r.theta, -2.0 * static_cast<double>(i) / static_cast<double>(r.dims)) / (2 * M_PI);
      const double smooth = std::clamp((turns - r.low_frequency) / (r.high_frequency - r.low_frequency), 0.0, 1.0);
      tensor.values.push_back(static_cast<float>(1 / ((1 - smooth) / r.factor + smooth)));
    }
    out_.tensors.push_back(std::move(tensor));
  }

  void add_tensor(const io::TensorInfo& info) {
    const auto place = gguf_place(c_.model_type, info.name);
    if (!place)
      throw DataError(
          fmt::format("{}: tensor '{}' is not one of architecture '{}'", info.file, info.name, c_.model_type),
          info.file);
    if (place->stored.empty() || (c_.tied && info.name == "lm_head.weight")) return;
    ExportedTensor tensor;
    tensor.source = info.name;
    tensor.plan = {place->stored, info.shape, io::kGgufF32};
    if (place->how == GgufPlace::How::kTransposed && info.shape.size() == 2) {
      tensor.kind = ExportedTensor::Kind::kTransposed;
      std::swap(tensor.plan.shape[0], tensor.plan.shape[1]);
    } else if (place->how == GgufPlace::How::kRotaryQuery || place->how == GgufPlace::How::kRotaryKey) {
      tensor.kind = ExportedTensor::Kind::kRotary;
      tensor.heads = place->how == GgufPlace::How::kRotaryQuery ? c_.num_heads : c_.num_kv_heads;
    }
    tensor.plan.type = type_of(tensor.plan, place->layer);
    out_.tensors.push_back(std::move(tensor));
  }

  std::uint32_t type_of(const io::GgufTensorPlan& plan, std::int64_t layer) const {
    const bool is_small = plan.shape.size() < 2 || !plan.name.ends_with(".weight") ||
                          plan.name.ends_with("_norm.weight") || plan.name == "position_embd.weight";
    if (is_small) return io::kGgufF32;
    const auto columns = plan.shape.back();
    return form_ == GgufForm::kQ4KM ? fitting(mixed_type(plan, layer), columns) : gguf_matrix_type(form_, columns);
  }

  /// Q4_K_M.
  std::uint32_t mixed_type(const io::GgufTensorPlan& plan, std::int64_t layer) const {
    const std::string& name = plan.name;
    if (name == "output.weight" || (!has_head_ && name == "token_embd.weight"))
      return plan.shape.back() % 256 == 0 ? kQ6_K : kQ8_0;
    if (name.ends_with("attn_qkv.weight")) return kQ5_K;
    const bool may_get_more = name.ends_with("attn_v.weight") || name.ends_with("ffn_down.weight");
    return may_get_more && gets_more_bits(layer, c_.num_layers) ? kQ6_K : kQ4_K;
  }

  const families::DecoderConfig& c_;
  const io::TensorSource& weights_;
  GgufForm form_;
  bool has_head_ = false;
  GgufExport out_;
};

}  // namespace

const families::DecoderConfig& gguf_decoder(const families::FamilyConfig& config) {
  const auto* c = std::get_if<families::DecoderConfig>(&config);
  const std::vector<std::string> known = {"llama", "mistral", "qwen2", "gpt2"};
  if (!c || std::find(known.begin(), known.end(), c->model_type) == known.end() || c->classifier) {
    const std::string what = c ? c->model_type + (c->classifier ? " with a classifier" : "")
                             : std::holds_alternative<families::T5Config>(config) ? "t5"
                                                                                  : "bert";
    throw ConfigError("--gguf writes language models of the families llama, mistral, qwen2 and gpt2, found " + what,
                      "gguf");
  }
  return *c;
}

std::uint32_t gguf_matrix_type(GgufForm form, std::int64_t columns) {
  TESSERA_CHECK(form != GgufForm::kQ4KM, "one type for all matrices");
  return form == GgufForm::kF32 ? io::kGgufF32 : form == GgufForm::kF16 ? io::kGgufF16 : fitting(kQ8_0, columns);
}

GgufExport plan_gguf(const families::FamilyConfig& config, const io::TensorSource& weights, GgufForm form) {
  return Planner(gguf_decoder(config), weights, form).plan();
}

at::Tensor values_for_gguf(const ExportedTensor& tensor, const io::TensorSource& weights) {
  if (tensor.source.empty())
    return at::from_blob(const_cast<float*>(tensor.values.data()), tensor.plan.shape, at::kFloat).clone();
  auto values = at::empty({tensor.plan.numel()}, at::kFloat);
  weights.read(tensor.source, 0, values);
  const auto& shape = tensor.plan.shape;
  if (tensor.kind == ExportedTensor::Kind::kTransposed) return values.reshape({shape[1], shape[0]}).t().contiguous();
  values = values.reshape(shape);
  if (tensor.kind == ExportedTensor::Kind::kPlain) return values;
  const auto place = rotary_rows(shape[0], tensor.heads);
  auto moved = at::empty_like(values);
  for (std::int64_t r = 0; r < shape[0]; ++r) moved.select(0, place(r)).copy_(values.select(0, r));
  return moved;
}

}  // namespace tessera::models
