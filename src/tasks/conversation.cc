#include "tasks/conversation.h"

#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "chat/jinja/json.h"
#include "tessera/base/error.h"

namespace tessera::tasks {

std::string ConversationRenderer::render(const nlohmann::json& row, const std::string& where) {
  open();
  const auto& [source, place] = parsed(row.contains("tools") && !row["tools"].is_null());
  auto variables = tokens_.special_tokens;
  const auto value = chat::parse_json(json_text(row));
  for (const auto& [key, item] : (*value.get<chat::DictPtr>())->items()) variables[key.text()] = item;
  if (!row.contains("add_generation_prompt")) variables["add_generation_prompt"] = chat::Value(true);
  try {
    return chat::render_chat(source, std::move(variables)).text;
  } catch (const chat::TemplateError& e) {
    throw DataError(where + place + ": " + e.what(), place);
  }
}

void ConversationRenderer::open() {
  if (is_open_) return;
  tokens_ = chat::read_tokenizer_templates(folder_);
  is_open_ = true;
  parsed(false);
}

const ConversationRenderer::Parsed& ConversationRenderer::parsed(bool with_tools) {
  if (const auto it = parsed_.find(with_tools); it != parsed_.end()) return it->second;
  const std::string place = named_.empty() ? tokens_.file_of("", with_tools) : named_;
  const std::string source = named_.empty() ? tokens_.choose("", with_tools) : chat::template_source(named_);
  try {
    return parsed_.emplace(with_tools, Parsed{chat::Template(source), place}).first->second;
  } catch (const chat::TemplateError& e) {
    throw DataError(place + ": " + e.what(), place);
  }
}

}  // namespace tessera::tasks
