#include "tasks/conversation.h"

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "tessera/base/error.h"

namespace tessera::tasks {

std::string ConversationRenderer::render(const nlohmann::json& row, const std::string& where) {
  open();
  auto variables = special_tokens_;
  const auto value = chat::parse_json(json_text(row));
  for (const auto& [key, item] : (*value.get<chat::DictPtr>())->items()) variables[key.text()] = item;
  if (!row.contains("add_generation_prompt")) variables["add_generation_prompt"] = chat::Value(true);
  const auto& [source, place] = templates_->of(variables);
  try {
    return chat::render_chat(source, std::move(variables)).text;
  } catch (const chat::TemplateError& e) {
    throw DataError(where + place + ": " + e.what(), place);
  }
}

void ConversationRenderer::open() {
  if (templates_) return;
  auto tokens = chat::read_tokenizer_templates(folder_);
  special_tokens_ = tokens.special_tokens;
  if (named_.empty())
    templates_.emplace(std::move(tokens));
  else
    templates_.emplace(chat::template_source(named_), named_);
  templates_->of({});
}

}  // namespace tessera::tasks
