#pragma once
// The messages of a row, checked.
#include <string>
#include <vector>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/value.h"
#include "data/row_source.h"
#include "text/tokenizer.h"

namespace tessera::data {

enum class RoleNames {
  kAsTheyAre,  // as TRL does it
  kStandard,   // ShareGPT's human is called user; gpt, chatgpt, bard, bing, model and bot are called assistant
};

/// `messages` or `conversations`: a list (or its JSON) of {"role", "content"}, or of ShareGPT's {"from", "value"},
/// which become role and content. DataError names file, row and key.
chat::Value read_messages(const chat::Dict& row, const SourceRow& source, RoleNames roles = RoleNames::kAsTheyAre);
/// The same for one value, called `key` in messages.
chat::Value check_messages(const chat::Value& messages, const std::string& key, const SourceRow& source,
                           RoleNames roles = RoleNames::kAsTheyAre);
/// A role of these (checked) messages that kStandard would call otherwise; empty: none.
std::string unusual_role(const chat::Value& messages);
/// [{"role": role, "content": content}]
chat::Value make_messages(const std::string& role, const std::string& content);

/// For each token whether it belongs to a generation block, as transformers maps spans to tokens: from the token that
/// holds a span's first character to the one that holds its last; a span whose first character has no token ends the
/// search.
std::vector<bool> assistant_mask(const text::Encoding& encoding, const std::vector<chat::Span>& spans);

}  // namespace tessera::data
