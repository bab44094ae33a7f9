#pragma once
// The prompt that two completions hold in common, as TRL's extract_prompt finds it.
#include <string>

#include "chat/jinja/value.h"
#include "data/row_source.h"

namespace tessera::data {

struct PromptedPair {
  chat::Value prompt, chosen, rejected;
};

/// Texts: their longest common start in characters, without a space at its end, which stays with the completions.
/// Lists of messages: the messages they begin with. Where one is the start of the other, all but the last character or
/// message of the shorter. DataError for empty ones.
PromptedPair extract_prompt(const chat::Value& chosen, const chat::Value& rejected, const SourceRow& row);

/// Two lists one behind the other, or two texts.
chat::Value joined(const chat::Value& first, const chat::Value& second);

}  // namespace tessera::data
