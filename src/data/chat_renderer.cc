#include "data/chat_renderer.h"

#include <fmt/format.h>

#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "chat/tokenizer_template.h"
#include "tessera/base/error.h"

namespace tessera::data {

using chat::Value;

namespace {

chat::RowTemplates templates_of(const std::string& source, const std::string& place, const text::Tokenizer& tokenizer) {
  if (!source.empty()) return {source, place};
  chat::TokenizerTemplates own{.templates = tokenizer.chat_templates()};
  for (const auto& [name, text] : own.templates) own.files[name] = place;
  return chat::RowTemplates(std::move(own));
}

}  // namespace

ChatRenderer::ChatRenderer(const std::string& source, const std::string& place, const text::Tokenizer& tokenizer)
    : special_tokens_(chat::template_variables(tokenizer.special_tokens())),
      templates_(templates_of(source, place, tokenizer)) {
  if (has_template()) templates_.of({});
}

chat::Rendered ChatRenderer::render(const Value& messages, const chat::Dict& object, const SourceRow& row,
                                    bool add_generation_prompt) const {
  auto variables = special_tokens_;
  if (const Value* more = object.find(std::string_view("chat_template_kwargs")); more && !more->is_none()) {
    if (!more->is<chat::DictPtr>())
      throw DataError(
          fmt::format("{}: key \"chat_template_kwargs\" must be an object, found {}", where(row), called(*more, row)),
          *row.file, row.number);
    for (const auto& [key, value] : (*more->get<chat::DictPtr>())->items())
      if (key.is_text()) variables[key.text()] = value;
  }
  variables["messages"] = messages;
  variables["add_generation_prompt"] = add_generation_prompt;
  std::string place;
  try {
    if (const Value* tools = object.find(std::string_view("tools")))
      variables["tools"] = tools->is_text() ? chat::parse_json(tools->text()) : *tools;
    if (!templates_.has(variables))
      throw ConfigError(
          "the data are conversations, but the tokenizer has no chat template; choose one with --chat_template_format "
          "chatml or zephyr",
          "chat_template_format");
    const auto& chosen = templates_.of(variables);
    place = chosen.place;
    return chat::render_chat(chosen.source, std::move(variables));
  } catch (const chat::TemplateError& e) {
    const std::string at = e.kind == chat::ErrorKind::kRaised && e.at.line > 0
                               ? fmt::format(" (line {}, column {} of the template)", e.at.line, e.at.column)
                               : "";
    throw DataError(fmt::format("{}: the chat template{} fails: {}{}", where(row), chat::in_place(place), e.what(), at),
                    *row.file, row.number);
  }
}

}  // namespace tessera::data
