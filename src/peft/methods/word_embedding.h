#pragma once
#include <string>
#include <vector>

#include "models/model.h"
#include "peft/slots.h"

namespace tessera::peft {

/// The first table with a row for every token, as PEFT looks for it. ConfigError: there is none.
Slot word_embedding(const nn::HookedModule& model, std::int64_t vocab_size);

/// Modules of upstream's tree that share the word embedding's weight and are no modules of their own here.
std::vector<std::string> tied_to_words(const models::Model& model, const models::ModelConfig& family);

}  // namespace tessera::peft
