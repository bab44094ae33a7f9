#pragma once
// Conversations of data rows as text, by a chat template.
#include <map>
#include <optional>
#include <string>

#include "chat/chat_template.h"
#include "chat/row_templates.h"
#include "data/row_source.h"
#include "text/tokenizer.h"

namespace tessera::data {

/// Thread-safe.
class ChatRenderer {
 public:
  /// source: Jinja; empty: the tokenizer's, "tool_use" for rows with tools where there is one. place: of the template,
  /// for messages. DataError for one that cannot be parsed.
  ChatRenderer(const std::string& source, const std::string& place, const text::Tokenizer& tokenizer);

  bool has_template() const { return templates_.has({}); }
  /// object: the row, whose tools and chat_template_kwargs the template gets; the latter count before all else, as in
  /// TRL. add_generation_prompt: not given, the row may ask for one; given, it may not. continue_final_message: nothing
  /// follows the last message's own text. ConfigError without a template; DataError names file and row.
  chat::Rendered render(const chat::Value& messages, const chat::Dict& object, const SourceRow& row,
                        std::optional<bool> add_generation_prompt = {}, bool continue_final_message = false) const;

 private:
  std::map<std::string, chat::Value> variables_of(const chat::Dict& object, const SourceRow& row,
                                                  std::optional<bool> add_generation_prompt) const;

  std::map<std::string, chat::Value> special_tokens_;
  chat::RowTemplates templates_;
};

}  // namespace tessera::data
