#include "estimate/optimizer_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>

#include "base/dotted_name.h"
#include "base/low_rank_optimizer.h"
#include "base/nearest.h"
#include "estimate/adapter_formulas.h"
#include "estimate/model_tensors.h"
#include "estimate/rank_memory.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

constexpr std::int64_t kSmallestPacked = 4096, kBlock8Bit = 256, kBlock4Bit = 128;

/// kWhole8Bit, kWhole4Bit: torchao's, of parameters in whole blocks, embeddings too.
enum class StateForm { k32Bit, k8Bit, kWhole8Bit, kWhole4Bit, kFactored };
struct OptimizerForm {
  const char* name;
  int states;  // numbers for each element
  StateForm form = StateForm::k32Bit;
  bool on_host = false;  // computes on the CPU, wherever the parameters lie
};
constexpr bool kOnHost = true;
constexpr OptimizerForm kForms[] = {
    {"adamw_torch", 2},
    {"adamw_torch_fused", 2},
    {"adamw_hf", 2},
    {"adamw_apex_fused", 2},
    {"paged_adamw_32bit", 2},
    {"paged_adamw", 2},
    {"adam", 2},
    {"sgd", 0},
    {"adafactor", 0, StateForm::kFactored, kOnHost},
    {"torch_adafactor", 0, StateForm::kFactored, kOnHost},
    {"lion_32bit", 1},
    {"paged_lion_32bit", 1},
    {"rmsprop", 1},
    {"adagrad", 1},
    {"ademamix", 3},
    {"paged_ademamix_32bit", 3},
    {"adamw_8bit", 2, StateForm::k8Bit},
    {"adamw_bnb_8bit", 2, StateForm::k8Bit},
    {"paged_adamw_8bit", 2, StateForm::k8Bit},
    {"adamw_torch_8bit", 2, StateForm::kWhole8Bit},
    {"adamw_torch_4bit", 2, StateForm::kWhole4Bit},
    {"lion_8bit", 1, StateForm::k8Bit},
    {"paged_lion_8bit", 1, StateForm::k8Bit},
    {"ademamix_8bit", 3, StateForm::k8Bit},
    {"paged_ademamix_8bit", 3, StateForm::k8Bit},
    {"stable_adamw", 2, StateForm::k32Bit, kOnHost},
    {"lorafa", 2, StateForm::k32Bit, kOnHost},
    {"grokadamw", 3, StateForm::k32Bit, kOnHost},
    {"schedule_free_adamw", 3},  // one holds the weights while the averaged ones are evaluated or saved
    {"schedule_free_radam", 3},
    {"schedule_free_sgd", 2},
    {"adamw_anyprecision", 2, StateForm::k32Bit, kOnHost},
    {"lomo", 0},
    {"adalomo", 0, StateForm::kFactored, kOnHost},
    {"galore_adamw", 2, StateForm::k32Bit, kOnHost},  // of these what is not projected
    {"galore_adamw_layerwise", 2, StateForm::k32Bit, kOnHost},
    {"galore_adamw_8bit", 2, StateForm::k8Bit, kOnHost},
    {"galore_adamw_8bit_layerwise", 2, StateForm::k8Bit, kOnHost},
    {"galore_adafactor", 0, StateForm::kFactored, kOnHost},
    {"galore_adafactor_layerwise", 0, StateForm::kFactored, kOnHost},
    {"apollo_adamw", 2, StateForm::k32Bit, kOnHost},
    {"apollo_adamw_layerwise", 2, StateForm::k32Bit, kOnHost},
    {"rmsprop_bnb", 1},
    {"rmsprop_bnb_32bit", 1},
    {"rmsprop_bnb_8bit", 1, StateForm::k8Bit},
};

const OptimizerForm& form_of(const std::string& optim) {
  std::vector<std::string> names;
  for (const auto& form : kForms) {
    if (optim == form.name) return form;
    names.emplace_back(form.name);
  }
  throw ConfigError(
      fmt::format("--optim '{}': how much state it keeps is not known{}", optim, did_you_mean(optim, names)), "optim");
}

/// The table of an nn::Embedding, by the names of the families' modules.
bool is_embedding(const std::string& parameter) {
  static const std::set<std::string> kTables = {"embed_tokens",
                                                "wte",
                                                "wpe",
                                                "word_embeddings",
                                                "embed_in",
                                                "embed_positions",
                                                "token_embd",
                                                "shared",
                                                "position_embeddings",
                                                "token_type_embeddings",
                                                "distance_embedding",
                                                "rel_embeddings",
                                                "relative_attention_bias"};
  return parameter.ends_with(".weight") && kTables.contains(last_part(module_of(parameter)));
}

}  // namespace

bool is_known_optimizer(const std::string& optim) {
  return std::any_of(std::begin(kForms), std::end(kForms), [&](const auto& form) { return optim == form.name; });
}

std::vector<std::string> low_rank_optimizers() {
  std::vector<std::string> names;
  for (const auto& form : kForms)
    if (is_low_rank_optimizer(form.name)) names.emplace_back(form.name);
  return names;
}

bool computes_on_host(const std::string& optim) {
  return std::any_of(std::begin(kForms), std::end(kForms),
                     [&](const auto& form) { return optim == form.name && form.on_host; });
}

std::int64_t optimizer_state_bytes(const std::string& optim, const std::string& parameter,
                                   const std::vector<std::int64_t>& shape) {
  const auto& form = form_of(optim);
  std::int64_t numel = 1;
  for (const auto size : shape) numel *= size;
  if (form.form == StateForm::kFactored) {  // a row and a column of means stand for a matrix
    if (shape.size() < 2) return 4 * numel;
    return 4 * (numel / shape.back() + numel / shape[shape.size() - 2]);
  }
  const bool in_4_bits = form.form == StateForm::kWhole4Bit,
             exempt = form.form == StateForm::k8Bit && is_embedding(parameter);
  const auto block = in_4_bits ? kBlock4Bit : kBlock8Bit;
  const bool divides = form.form == StateForm::k8Bit || numel % block == 0;
  const bool packed = form.form != StateForm::k32Bit && numel >= kSmallestPacked && divides && !exempt;
  if (!packed) return 4 * form.states * numel;
  return form.states * (numel / (in_4_bits ? 2 : 1) + 4 * ((numel + block - 1) / block));
}

bool is_linear_layer(const ModelTensor& t) {
  return t.shape.size() == 2 && t.name.ends_with(".weight") && !t.in_out && !is_embedding(t.name);
}

LowRankShape parse_low_rank(const std::string& optim_args) {
  LowRankShape shape;
  auto args = parse_peft_args(optim_args, "optim_args");
  if (args.contains("rank")) {
    const auto& text = args["rank"];
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), shape.rank);
    if (error != std::errc() || end != text.data() + text.size() || shape.rank < 1)
      throw ConfigError("--optim_args: rank is '" + text + "', not a positive whole number", "optim_args");
  }
  if (args.contains("proj_type")) shape.proj_type = args["proj_type"];
  static const std::set<std::string> kTypes = {"std", "reverse_std", "left", "right", "full"};
  if (!kTypes.contains(shape.proj_type))
    throw ConfigError(
        fmt::format("--optim_args: proj_type is '{}'; there are {}", shape.proj_type, fmt::join(kTypes, ", ")),
        "optim_args");
  return shape;
}

LowRankBytes low_rank_bytes(const std::string& optim, const LowRankShape& shape, std::int64_t rows,
                            std::int64_t columns) {
  const auto [left, right] = projected_sides(shape.proj_type, rows, columns);
  const bool random = optim.starts_with("apollo_");
  const auto rank = random ? shape.rank : std::min({shape.rank, rows, columns});
  const std::int64_t low_rows = left ? rank : rows, low_columns = right ? rank : columns;
  const auto low = 4 * low_rows * low_columns, projections = 4 * rank * ((left ? rows : 0) + (right ? columns : 0));
  // The small matrix lasts, its gradient is there in the update.
  return {low + optimizer_state_bytes(optim, "", {low_rows, low_columns}) + projections, low};
}

void count_low_rank(SizedParameter& parameter, const std::string& optim, const LowRankShape& shape,
                    const std::vector<std::int64_t>& sizes) {
  const auto bytes = low_rank_bytes(optim, shape, sizes.at(0), sizes.at(1));
  parameter.state_bytes = 0;
  parameter.own_state_bytes = bytes.kept;
  parameter.own_update_bytes = bytes.update;
}

}  // namespace tessera::estimate
