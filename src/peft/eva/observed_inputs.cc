#include "peft/eva/observed_inputs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <memory>

#include "peft/methods/activated_tokens.h"
#include "peft/methods/word_embedding.h"
#include "tensor/device.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

/// Raises the ids of tokens that count beyond the vocabulary, which ActivatedRows on the word embedding undoes.
class CountedInput final : public models::InputAdapter {
 public:
  CountedInput(const EvaSettings& settings, std::int64_t vocab_size) : settings_(settings), vocab_size_(vocab_size) {}

  models::ModelInput prepare(models::ModelInput in) const override {
    auto counted = in.attention_mask.defined()
                       ? in.attention_mask.ne(0)
                       : at::ones(in.input_ids.sizes(), in.input_ids.options().dtype(at::kBool));
    if (settings_.use_label_mask && in.labels.defined() && in.labels.sizes() == in.input_ids.sizes())
      counted = counted.logical_and(in.labels.ne(settings_.label_mask_value));
    if (in.row_ids.defined()) {  // a rank without rows computes one that is none
      const auto is_row = tensor::beside(in.row_ids.ge(0), counted);
      counted = counted.logical_and(is_row.dim() == 1 ? is_row.unsqueeze(1) : is_row);
    }
    in.input_ids = in.input_ids + counted.to(at::kLong) * vocab_size_;
    in.embedding_noise = 0;
    return in;
  }
  models::ModelOutput finish(models::ModelOutput out) const override { return out; }
  std::int64_t virtual_tokens() const override { return 0; }

 private:
  EvaSettings settings_;
  std::int64_t vocab_size_;
};

class ObservedLinear final : public nn::LinearAdapter {
 public:
  ObservedLinear(std::size_t number, std::shared_ptr<const ActivatedTokens> counted, InputObserver& observer)
      : number_(number), counted_(std::move(counted)), observer_(observer) {}
  std::string class_name() const override { return "Linear"; }

  at::Tensor forward(const nn::Linear& layer, const at::Tensor& x) override {
    if (observer_.wants(number_)) {
      const auto rows = x.reshape({-1, x.size(-1)});
      if (rows.size(0) != counted_->tokens) {
        throw ConfigError("EVA (init_lora_weights eva) looks at what layers see of every token, but one works on " +
                              std::to_string(rows.size(0)) + " of " + std::to_string(counted_->tokens) +
                              "; leave output heads, poolers and experts out of target_modules",
                          "target_modules");
      }
      observer_.see(number_, rows.index_select(0, tensor::beside(counted_->places, rows)));
    }
    return layer.product(x);
  }

 private:
  std::size_t number_;
  std::shared_ptr<const ActivatedTokens> counted_;
  InputObserver& observer_;
};

}  // namespace

void observe_inputs(models::Model& model, const std::vector<std::string>& layers, const EvaSettings& settings,
                    InputObserver& observer, std::int64_t vocab_size) {
  const auto counted = std::make_shared<ActivatedTokens>();
  const auto words = word_embedding(model, vocab_size);
  words.embedding->attach(std::make_shared<ActivatedRows>(counted));
  model.set_input_adapter(std::make_shared<CountedInput>(settings, words.weight().size(0)));
  for (const auto& slot : slots(model)) {
    const auto place = std::find(layers.begin(), layers.end(), slot.name);
    if (place == layers.end()) continue;
    const auto number = static_cast<std::size_t>(place - layers.begin());
    slot.linear->attach(std::make_shared<ObservedLinear>(number, counted, observer));
  }
}

}  // namespace tessera::peft
