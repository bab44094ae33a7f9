#pragma once
// Conversations -> text, by the chat template of a tokenizer's folder or of --chat_template.
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "chat/row_templates.h"

namespace tessera::tasks {

class ConversationRenderer {
 public:
  /// chat_template: a file or a name; empty: the tokenizer's own. It is looked for when the first conversation comes.
  ConversationRenderer(std::string tokenizer_folder, std::string chat_template)
      : folder_(std::move(tokenizer_folder)), named_(std::move(chat_template)) {}

  /// row: {"messages": [...]} and any other variable of the template; the answer's begin is added unless the row says
  /// "add_generation_prompt". DataError that begins with `where` for what the template refuses.
  std::string render(const nlohmann::json& row, const std::string& where);
  /// Looks for the template now: DataError where there is none, or it cannot be parsed.
  void open();

 private:
  std::string folder_, named_;
  std::map<std::string, chat::Value> special_tokens_;
  std::optional<chat::RowTemplates> templates_;  // unset: not opened
};

}  // namespace tessera::tasks
