#include "data/chat_renderer.h"

#include <fmt/format.h>

#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "chat/tokenizer_template.h"
#include "tessera/base/error.h"

namespace tessera::data {

using chat::Value;

ChatRenderer::ChatRenderer(const std::string& source, std::string place, const text::Tokenizer& tokenizer)
    : place_(std::move(place)), special_tokens_(chat::template_variables(tokenizer.special_tokens())) {
  const auto parse = [&](const std::string& text) -> std::unique_ptr<const chat::Template> {
    if (text.empty()) return nullptr;
    try {
      return std::make_unique<const chat::Template>(text);
    } catch (const chat::TemplateError& e) {
      throw DataError(fmt::format("the chat template{} cannot be used: {}", in_place(), e.what()), place_);
    }
  };
  template_ = parse(source.empty() ? tokenizer.chat_template() : source);
  const auto& own = tokenizer.chat_templates();
  if (const auto it = own.find("tool_use"); source.empty() && it != own.end()) tool_template_ = parse(it->second);
}

std::string ChatRenderer::in_place() const {
  return place_.empty() ? "" : fmt::format(" in '{}'", place_);
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
  try {
    if (const Value* tools = object.find(std::string_view("tools")))
      variables["tools"] = tools->is_text() ? chat::parse_json(tools->text()) : *tools;
    const auto tools = variables.find("tools");
    const bool has_tools = tools != variables.end() && !tools->second.is_none();
    const auto& chosen = has_tools && tool_template_ ? tool_template_ : template_;
    if (!chosen)
      throw ConfigError(
          "the data are conversations, but the tokenizer has no chat template; choose one with --chat_template_format "
          "chatml or zephyr",
          "chat_template_format");
    return chat::render_chat(*chosen, std::move(variables));
  } catch (const chat::TemplateError& e) {
    const std::string at = e.kind == chat::ErrorKind::kRaised && e.at.line > 0
                               ? fmt::format(" (line {}, column {} of the template)", e.at.line, e.at.column)
                               : "";
    throw DataError(fmt::format("{}: the chat template{} fails: {}{}", where(row), in_place(), e.what(), at), *row.file,
                    row.number);
  }
}

}  // namespace tessera::data
