#include "peft/methods/word_embedding.h"

#include "tessera/base/error.h"

namespace tessera::peft {

Slot word_embedding(const nn::HookedModule& model, std::int64_t vocab_size) {
  for (const auto& slot : slots(model))
    if (slot.embedding && slot.weight().size(0) == vocab_size) return slot;
  throw ConfigError("the model has no word embedding, which this method needs", "peft_type");
}

std::vector<std::string> tied_to_words(const models::Model& model, const models::ModelConfig& family) {
  std::vector<std::string> out;
  if (family.kind == models::ModelKind::kSeq2Seq) out = {"encoder.embed_tokens", "decoder.embed_tokens"};
  const bool has_head = family.kind != models::ModelKind::kSequenceClassification;
  const auto modules = model.named_modules("", /*include_self=*/false);
  const auto* head = modules.find(family.output_embedding);
  if (has_head && (!head || !dynamic_cast<const nn::Linear*>(head->get()))) out.push_back(family.output_embedding);
  return out;
}

}  // namespace tessera::peft
