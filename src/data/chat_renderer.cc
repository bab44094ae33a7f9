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

std::map<std::string, Value> ChatRenderer::variables_of(const chat::Dict& object, const SourceRow& row,
                                                        std::optional<bool> add_generation_prompt) const {
  auto out = special_tokens_;
  if (add_generation_prompt) out["add_generation_prompt"] = *add_generation_prompt;
  if (const Value* tools = object.find(std::string_view("tools")))
    out["tools"] = tools->is_text() ? chat::parse_json(tools->text()) : *tools;
  const Value* more = object.find(std::string_view("chat_template_kwargs"));
  if (more == nullptr || more->is_none()) return out;
  if (!more->is<chat::DictPtr>())
    fail(row, fmt::format("key \"chat_template_kwargs\" must be an object, found {}", called(*more, row)));
  for (const auto& [key, value] : (*more->get<chat::DictPtr>())->items()) {
    if (!key.is_text()) continue;
    if (key.text() == "add_generation_prompt" && add_generation_prompt)
      fail(row, "\"chat_template_kwargs\" must not have add_generation_prompt where there is a prompt, which sets it");
    if (key.text() == "messages")
      fail(row, "\"chat_template_kwargs\" must not have messages: those of the row are rendered");
    out[key.text()] = value;
  }
  return out;
}

chat::Rendered ChatRenderer::render(const Value& messages, const chat::Dict& object, const SourceRow& row,
                                    std::optional<bool> add_generation_prompt, bool continue_final_message) const {
  std::string place;
  try {
    auto variables = variables_of(object, row, add_generation_prompt);
    variables["messages"] = messages;
    if (continue_final_message) variables["continue_final_message"] = true;
    if (const auto own = variables.extract("chat_template"); !own.empty() && !own.mapped().is_none()) {
      if (!own.mapped().is_text())
        fail(row, fmt::format("key \"chat_template_kwargs.chat_template\" must be a text, found {}",
                              called(own.mapped(), row)));
      return chat::render_chat(chat::Template(own.mapped().text()), std::move(variables));
    }
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
