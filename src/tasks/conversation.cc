#include "tasks/conversation.h"

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "chat/jinja/json.h"
#include "tessera/base/error.h"

namespace tessera::tasks {

std::string ConversationRenderer::render(const nlohmann::json& row, const std::string& where) {
  if (!template_) open();
  auto variables = tokens_.special_tokens;
  const auto value = chat::parse_json(json_text(row));
  for (const auto& [key, item] : (*value.get<chat::DictPtr>())->items()) variables[key.text()] = item;
  if (!row.contains("add_generation_prompt")) variables["add_generation_prompt"] = chat::Value(true);
  try {
    return chat::render_chat(*template_, std::move(variables)).text;
  } catch (const chat::TemplateError& e) {
    throw DataError(where + place_ + ": " + e.what(), place_);
  }
}

void ConversationRenderer::open() {
  tokens_ = chat::read_tokenizer_templates(folder_);
  std::string source;
  if (named_.empty()) {
    source = tokens_.choose("", false);
    place_ = tokens_.file_of("", false);
  } else {
    source = chat::template_source(named_);
    place_ = named_;
  }
  try {
    template_.emplace(source);
  } catch (const chat::TemplateError& e) {
    throw DataError(place_ + ": " + e.what(), place_);
  }
}

}  // namespace tessera::tasks
