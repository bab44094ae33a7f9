#include "peft/methods/trainable_tokens.h"

#include "peft/methods/token_rows.h"
#include "peft/methods/word_embedding.h"
#include "tensor/rng.h"

namespace tessera::peft {
namespace {

const std::string kRows = token_rows_name(TokenRowsPlace::kAlone);

}  // namespace

void TrainableTokens::bind(ConfigKeys& keys) {
  keys.integers("token_indices", token_indices);
  keys.names_or_regex("target_modules", target_modules, target_regex);
  keys.flag("init_weights", init_weights);
}

std::vector<std::string> TrainableTokens::attach(models::Model& model, const models::ModelConfig& family) {
  const auto words = word_embedding(model, family.vocab_size);
  if (target_modules.empty() && target_regex.empty()) target_regex = words.name;
  head_ = family.output_embedding;
  auto names = LayerMethod::attach(model, family);
  table_ = words.name;
  tied_ = tied_to_words(model, family);
  return names;
}

void TrainableTokens::attach_to(const Slot& slot) const {
  attach_token_rows(slot, head_, token_indices, TokenRowsPlace::kAlone, "token_indices");
}

std::map<std::string, Fill> TrainableTokens::first_values_of(const Slot& slot, std::uint64_t seed) const {
  return {{kRows, [key = tensor::named_key(seed, slot.name + "." + kRows)](const at::Tensor& t) {
             tensor::fill_normal(t, key, 0.0, 1.0);
           }}};
}

std::vector<FromWeight> TrainableTokens::from_weights(const nn::HookedModule& model, std::uint64_t) const {
  std::vector<FromWeight> out;
  if (!init_weights) return out;
  for (const auto& slot : adapted_slots(model)) {
    out.push_back({slot.name + ".weight",
                   [name = slot.name, ids = token_indices](const at::Tensor& table, const Values&) -> Values {
                     return {{name + "." + kRows, rows_of(table, ids)}};
                   }});
  }
  return out;
}

std::vector<std::string> TrainableTokens::file_names(const std::string& parameter) const {
  auto names = LayerMethod::file_names(parameter);
  if (parameter == table_ + "." + kRows)
    for (const auto& module : tied_) names.push_back(prefix() + module + ".trainable_tokens_delta");
  return names;
}

at::Tensor TrainableTokens::merged(const Slot&, const std::string& leaf, const at::Tensor& value,
                                   const Values& adapter) const {
  return leaf == "weight" ? with_rows(value, token_indices, adapter.at(kRows)) : value;
}

}  // namespace tessera::peft
