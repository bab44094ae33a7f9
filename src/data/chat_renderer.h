#pragma once
// Conversations of data rows as text, by a chat template.
#include <map>
#include <memory>
#include <string>

#include "chat/chat_template.h"
#include "chat/jinja/template.h"
#include "data/row_source.h"
#include "text/tokenizer.h"

namespace tessera::data {

/// Thread-safe.
class ChatRenderer {
 public:
  /// source: Jinja; empty: the tokenizer's, "tool_use" for rows with tools where there is one. place: of the template,
  /// for messages. DataError for one that cannot be parsed.
  ChatRenderer(const std::string& source, std::string place, const text::Tokenizer& tokenizer);

  bool has_template() const { return template_ != nullptr; }
  /// object: the row, whose tools and chat_template_kwargs the template gets. ConfigError without a template; DataError
  /// names file and row.
  chat::Rendered render(const chat::Value& messages, const chat::Dict& object, const SourceRow& row,
                        bool add_generation_prompt) const;

 private:
  std::string in_place() const;

  std::string place_;
  std::map<std::string, chat::Value> special_tokens_;
  std::unique_ptr<const chat::Template> template_, tool_template_;  // null: there is none
};

}  // namespace tessera::data
