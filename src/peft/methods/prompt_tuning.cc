#include "peft/methods/prompt_tuning.h"

#include <ATen/ops/tensor.h>

#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

const std::string kPrompt = "prompt_encoder.default.embedding.weight";

}  // namespace

void PromptTuning::bind(ConfigKeys& keys) {
  bind_common(keys);
  keys.text("prompt_tuning_init", prompt_tuning_init);
  keys.text("prompt_tuning_init_text", prompt_tuning_init_text);
  keys.text("tokenizer_name_or_path", tokenizer_name_or_path);
  keys.unsupported("tokenizer_kwargs", nullptr);
}

void PromptTuning::check() const {
  VirtualTokenMethod::check();
  if (prompt_tuning_init != "RANDOM" && prompt_tuning_init != "SAMPLE_VOCAB" && prompt_tuning_init != "TEXT")
    throw ConfigError("prompt_tuning_init is one of RANDOM, SAMPLE_VOCAB, TEXT; found '" + prompt_tuning_init + "'",
                      "prompt_tuning_init");
  if (prompt_tuning_init == "TEXT" && prompt_tuning_init_text.empty() && !inference_mode)
    throw ConfigError("prompt_tuning_init TEXT needs prompt_tuning_init_text", "prompt_tuning_init_text");
}

std::vector<std::int64_t> PromptTuning::first_tokens(std::int64_t vocab_size, std::uint64_t seed) const {
  std::vector<std::int64_t> ids;
  const auto key = tensor::named_key(seed, "prompt_encoder tokens");
  for (std::int64_t i = 0; i < rows(); ++i) {
    const auto random = [&] { return tensor::random_bits(key, static_cast<std::uint32_t>(i)) % vocab_size; };
    ids.push_back(prompt_tuning_init == "TEXT" ? init_token_ids.at(i % init_token_ids.size()) : random());
  }
  return ids;
}

std::vector<FromWeight> PromptTuning::from_weights(const nn::HookedModule& model, std::uint64_t seed) const {
  if (prompt_tuning_init == "RANDOM") return {};
  if (prompt_tuning_init == "TEXT" && init_token_ids.empty())
    throw ConfigError("prompt_tuning_init_text has no tokens", "prompt_tuning_init_text");
  for (const auto& slot : adapted_slots(model)) {
    const auto ids = first_tokens(slot.weight().size(0), seed);
    return {{slot.name + ".weight", [ids](const at::Tensor& table, const Values&) -> Values {
               return {{kPrompt, table.index_select(0, at::tensor(ids, at::TensorOptions().dtype(at::kLong)))}};
             }}};
  }
  return {};
}

}  // namespace tessera::peft
