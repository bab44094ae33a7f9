#include "data/chat_renderer.h"

#include <fmt/format.h>

#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "tessera/base/error.h"
#include "text/special_names.h"

namespace tessera::data {
namespace {

using chat::Value;

std::map<std::string, Value> variables_of(const text::SpecialTokens& tokens) {
  std::map<std::string, Value> out;
  for (const auto& [name, token] : text::kSpecialNames)
    if (!(tokens.*token).empty()) out[name] = Value(tokens.*token);
  return out;
}

}  // namespace

ChatRenderer::ChatRenderer(const std::string& source, std::string place, const text::Tokenizer& tokenizer)
    : place_(std::move(place)), special_tokens_(variables_of(tokenizer.special_tokens())) {
  const std::string used = source.empty() ? tokenizer.chat_template() : source;
  if (used.empty()) return;
  try {
    template_ = std::make_unique<const chat::Template>(used);
  } catch (const chat::TemplateError& e) {
    throw DataError(fmt::format("the chat template{} cannot be used: {}", in_place(), e.what()), place_);
  }
}

std::string ChatRenderer::in_place() const {
  return place_.empty() ? "" : fmt::format(" in '{}'", place_);
}

chat::Rendered ChatRenderer::render(const Value& messages, const chat::Dict& object, const SourceRow& row,
                                    bool add_generation_prompt) const {
  if (!template_)
    throw ConfigError(
        "the data are conversations, but the tokenizer has no chat template; choose one with --chat_template_format "
        "chatml or zephyr",
        "chat_template_format");
  auto variables = special_tokens_;
  if (const Value* more = object.find(std::string_view("chat_template_kwargs")); more && more->is<chat::DictPtr>())
    for (const auto& [key, value] : (*more->get<chat::DictPtr>())->items())
      if (key.is_text()) variables[key.text()] = value;
  variables["messages"] = messages;
  variables["add_generation_prompt"] = add_generation_prompt;
  try {
    if (const Value* tools = object.find(std::string_view("tools")))
      variables["tools"] = tools->is_text() ? chat::parse_json(tools->text()) : *tools;
    return chat::render_chat(*template_, std::move(variables));
  } catch (const chat::TemplateError& e) {
    const std::string at = e.kind == chat::ErrorKind::kRaised && e.at.line > 0
                               ? fmt::format(" (line {}, column {} of the template)", e.at.line, e.at.column)
                               : "";
    throw DataError(fmt::format("{}: the chat template{} fails: {}{}", where(row), in_place(), e.what(), at), *row.file,
                    row.number);
  }
}

}  // namespace tessera::data
