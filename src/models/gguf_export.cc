#include "models/gguf_export.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "io/gguf_blocks.h"
#include "models/gguf_bert.h"
#include "models/gguf_keys.h"
#include "models/gguf_names.h"
#include "models/gguf_t5.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

constexpr std::uint32_t kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14;

/// Readers of these take a head that is in the file, not the table of tokens.
constexpr std::array kHeadOfItsOwn = {"olmo2", "olmoe", "gptneox", "phi2", "stablelm"};

/// The next type whose blocks divide the rows.
std::uint32_t fitting(std::uint32_t type, std::int64_t columns) {
  const io::GgufBlock* block = io::gguf_block(type);
  if (!block || columns % block->elements == 0) return type;
  const std::uint32_t next = type == kQ4_K ? kQ5_0 : type == kQ5_K ? kQ5_1 : type == kQ6_K ? kQ8_0 : io::kGgufF16;
  return fitting(next, columns);
}

/// The first and last eighth of the layers, and every third between.
bool gets_more_bits(std::int64_t layer, std::int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

GgufExport keys_of(const families::FamilyConfig& config, const GgufSubject& subject, const nlohmann::json& json) {
  if (const auto* t5 = std::get_if<families::T5Config>(&config)) return gguf_t5_keys(*t5, json);
  if (const auto* bert = std::get_if<families::BertConfig>(&config)) return gguf_bert_keys(*bert, json);
  return gguf_keys(subject.family, std::get<families::DecoderConfig>(config), json);
}

class Planner {
 public:
  Planner(const families::FamilyConfig& config, const nlohmann::json& json, const io::TensorSource& weights,
          GgufForm form)
      : c_(gguf_subject(config)), weights_(weights), form_(form), out_(keys_of(config, c_, json)) {}

  GgufExport plan() {
    const std::string head = c_.head + ".weight";
    has_head_ = !c_.tied && std::any_of(weights_.tensors().begin(), weights_.tensors().end(),
                                        [&](const auto& t) { return t.name == head; });
    for (const io::TensorInfo& info : weights_.tensors())
      if (!c_.tied || info.name != head) add_tensor(info);
    if (!has_head_ && c_.copies_head) add_copied_head();
    for (ExportedTensor& tensor : out_.tensors)
      if (!tensor.sources.empty()) tensor.plan.type = type_of(tensor.plan);
    return std::move(out_);
  }

 private:
  void add_tensor(const io::TensorInfo& info) {
    const auto place = gguf_place(c_.family, info.name);
    if (!place)
      throw DataError(
          fmt::format("{}: tensor '{}' is not one of architecture '{}'", info.file, info.name, c_.model_type),
          info.file);
    if (place->stored.empty()) return;
    if (place->expert >= 0) return add_expert(info, *place);
    if (planned(place->stored)) return;  // a table under two names
    ExportedTensor tensor;
    tensor.sources = {info.name};
    tensor.plan = {place->stored, info.shape, io::kGgufF32};
    tensor.arrangement = place->arrangement;
    tensor.heads = c_.heads;
    if (info.name == c_.head + ".weight") tensor.scale = c_.head_scale;
    if (place->stored == "position_embd.weight" && info.shape.size() == 2 && info.shape[0] > c_.first_position) {
      tensor.first_row = c_.first_position;
      tensor.plan.shape[0] -= tensor.first_row;
    }
    if (tensor.arrangement == GgufArrangement::kTransposed && info.shape.size() != 2)
      tensor.arrangement = GgufArrangement::kPlain;
    if (tensor.arrangement == GgufArrangement::kTransposed) std::swap(tensor.plan.shape[0], tensor.plan.shape[1]);
    out_.tensors.push_back(std::move(tensor));
  }

  /// Null: not yet.
  ExportedTensor* planned(const std::string& stored) {
    const auto found = std::find_if(out_.tensors.begin(), out_.tensors.end(),
                                    [&](const ExportedTensor& t) { return t.plan.name == stored; });
    return found == out_.tensors.end() ? nullptr : &*found;
  }

  /// A layer's experts become one tensor, in the place of the first.
  void add_expert(const io::TensorInfo& info, const GgufPlace& place) {
    ExportedTensor* found = planned(place.stored);
    const auto count = static_cast<std::size_t>(c_.experts);
    const auto at = static_cast<std::size_t>(place.expert);
    if (info.shape.size() != 2 || at >= count)
      throw DataError(fmt::format("{}: tensor '{}' is not a matrix of one of {} experts", info.file, info.name, count),
                      info.file);
    if (!found) {
      ExportedTensor tensor;
      tensor.sources.resize(count);
      tensor.plan = {place.stored, {c_.experts, info.shape[0], info.shape[1]}, io::kGgufF32};
      tensor.arrangement = GgufArrangement::kExperts;
      tensor.sources[at] = info.name;
      out_.tensors.push_back(std::move(tensor));
    } else {
      found->sources[at] = info.name;
    }
  }

  /// Readers of some architectures want the head beside the table that it is.
  void add_copied_head() {
    const ExportedTensor* table = planned("token_embd.weight");
    if (!table) return;
    ExportedTensor head = *table;
    head.plan.name = "output.weight";
    out_.tensors.push_back(std::move(head));
    has_head_ = true;
  }

  std::uint32_t type_of(const io::GgufTensorPlan& plan) const {
    const bool is_small = plan.shape.size() < 2 || !plan.name.ends_with(".weight") ||
                          plan.name.ends_with("_norm.weight") || plan.name == "position_embd.weight" ||
                          plan.name == "token_types.weight" || plan.name.ends_with("ffn_gate_inp.weight");
    if (is_small) return io::kGgufF32;
    const auto columns = plan.shape.back();
    return form_ == GgufForm::kQ4KM ? fitting(mixed_type(plan), columns) : gguf_matrix_type(form_, columns);
  }

  /// Q4_K_M, as llama-quantize mixes it.
  std::uint32_t mixed_type(const io::GgufTensorPlan& plan) const {
    const std::string& name = plan.name;
    const bool is_falcon = out_.architecture == "falcon";
    if (name == "output.weight" || (!has_head_ && name == "token_embd.weight"))
      return plan.shape.back() % 256 == 0 && !is_falcon ? kQ6_K : kQ8_0;
    const bool has_eight_experts = c_.experts == 8;
    const bool is_value = name.ends_with("attn_v.weight");
    if (has_eight_experts && (is_value || name.ends_with("attn_k.weight"))) return kQ8_0;
    if (has_eight_experts && name.ends_with("attn_output.weight")) return kQ5_K;
    if (name.ends_with("attn_rel_b.weight")) return io::kGgufF16;
    const bool is_down = name.find("ffn_down") != std::string::npos;
    if (!is_value && !is_down && !name.ends_with("attn_qkv.weight")) return kQ4_K;
    const auto [index, count] = turn_of(name, is_value ? "attn_v.weight" : "ffn_down");
    const bool more = gets_more_bits(index, count);
    if (is_falcon && is_down) return index < count / 16 ? kQ6_K : more ? kQ5_K : kQ4_K;
    return more ? kQ6_K : kQ4_K;
  }

  struct Turn {
    std::int64_t index, count;
  };
  /// Which of how many layers: of "blk.3.attn_v.weight" 3. Of an encoder and a decoder llama-quantize counts the
  /// tensors of one kind in the order of their names, the values' all together.
  Turn turn_of(const std::string& name, const std::string& kind) const {
    const std::string layers = "blk.";
    if (name.starts_with(layers)) return {std::stoll(name.substr(layers.size())), c_.layers};
    Turn turn{0, 0};
    for (const ExportedTensor& t : out_.tensors) {
      if (t.plan.name.find(kind) == std::string::npos) continue;
      ++turn.count;
      turn.index += t.plan.name < name;
    }
    if (kind == "ffn_down") turn.count = c_.layers;
    return turn;
  }

  const GgufSubject c_;
  const io::TensorSource& weights_;
  GgufForm form_;
  bool has_head_ = false;
  GgufExport out_;
};

}  // namespace

GgufSubject gguf_subject(const families::FamilyConfig& config) {
  if (const auto* t5 = std::get_if<families::T5Config>(&config)) return gguf_t5_subject(*t5);
  const auto refuse = [](const std::string& found) {
    throw ConfigError(fmt::format("--gguf writes models of the families {}, and classifiers of bert and roberta alone; "
                                  "found {}",
                                  fmt::join(gguf_model_types(), ", "), found),
                      "gguf");
  };
  if (const auto* bert = std::get_if<families::BertConfig>(&config)) {
    if (gguf_family(*bert).empty()) refuse(bert->names.base);
    return gguf_bert_subject(*bert);
  }
  const auto* c = &std::get<families::DecoderConfig>(config);
  const auto family = gguf_family(*c);
  if (family.empty() || c->classifier) refuse(c->model_type + (c->classifier ? " with a classifier" : ""));
  return {.family = family,
          .model_type = c->model_type,
          .head = c->names.head,
          .tied = c->tied,
          .copies_head = std::any_of(kHeadOfItsOwn.begin(), kHeadOfItsOwn.end(), [&](auto f) { return family == f; }),
          .heads = {c->num_heads, c->num_kv_heads},
          .layers = c->num_layers,
          .experts = c->experts.count,
          .vocab_size = c->vocab_size};
}

std::uint32_t gguf_matrix_type(GgufForm form, std::int64_t columns) {
  TESSERA_CHECK(form != GgufForm::kQ4KM, "one type for all matrices");
  return form == GgufForm::kF32 ? io::kGgufF32 : form == GgufForm::kF16 ? io::kGgufF16 : fitting(kQ8_0, columns);
}

GgufExport plan_gguf(const families::FamilyConfig& config, const nlohmann::json& json, const io::TensorSource& weights,
                     GgufForm form) {
  return Planner(config, json, weights, form).plan();
}

at::Tensor values_for_gguf(const ExportedTensor& tensor, const io::TensorSource& weights) {
  using How = GgufArrangement;
  const auto& shape = tensor.plan.shape;
  if (tensor.sources.empty()) return at::from_blob(const_cast<float*>(tensor.values.data()), shape, at::kFloat).clone();
  auto values = at::empty({tensor.plan.numel()}, at::kFloat);
  const auto begin = tensor.first_row * shape.back();
  const auto each = tensor.plan.numel() / static_cast<std::int64_t>(tensor.sources.size());
  for (std::size_t i = 0; i < tensor.sources.size(); ++i)
    weights.read(tensor.sources[i], begin, values.narrow(0, static_cast<std::int64_t>(i) * each, each));
  if (tensor.scale != 1) values.mul_(tensor.scale);
  if (tensor.arrangement == How::kTransposed) return values.reshape({shape[1], shape[0]}).t().contiguous();
  if (tensor.arrangement == How::kPlusOne) values.add_(1);
  values = values.reshape(shape);
  if (!moves_rows(tensor.arrangement)) return values;
  const auto place = moved_rows(tensor.arrangement, shape[0], tensor.heads);
  if (!place)
    throw DataError(fmt::format("tensor '{}': {} rows do not belong to {} heads and {} key/value heads",
                                tensor.sources[0], shape[0], tensor.heads.heads, tensor.heads.key_value_heads));
  auto moved = at::empty_like(values);
  for (std::int64_t r = 0; r < shape[0]; ++r) moved.select(0, place(r)).copy_(values.select(0, r));
  return moved;
}

}  // namespace tessera::models
