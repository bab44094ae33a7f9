#include "chat/chat_template.h"

#include "chat/jinja/methods.h"
#include "chat/jinja/repr.h"
#include "chat/jinja/template_error.h"

namespace tessera::chat {
namespace {

// What stands at the end of the last message while it is rendered, so that its place in the text is found.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view kBareMark = "CONTINUE_FINAL_MESSAGE_TAG";

Value with_item(const Value& dict, std::string_view key, Value value) {
  Dict copy = **dict.get<DictPtr>();
  copy.set(Value(key), std::move(value));
  return make_dict(std::move(copy));
}

std::string text_of(const Value& content) {
  if (!content.is_text()) type_error("continue_final_message needs a final message whose content is text");
  return content.text();
}

// Marks the end of `content` (a text, or a list of parts, of which the last with text counts); gives back that text.
std::string mark(Value& content) {
  if (!content.is<ListPtr>()) {
    const std::string text = text_of(content);
    content = Value(text + std::string(kMark));
    return text;
  }
  auto parts = iterate(content);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const auto* dict = part->get<DictPtr>();
    const Value* found = dict ? (*dict)->find(std::string_view("text")) : nullptr;
    if (found == nullptr) continue;
    const std::string text = text_of(*found);
    *part = with_item(*part, "text", Value(text + std::string(kMark)));
    content = make_list(std::move(parts));
    return text;
  }
  value_error("continue_final_message is set but we could not find any text to continue in the final message!");
}

std::string mark_last(Value& messages) {
  auto all = iterate(messages);
  const auto* last = all.empty() ? nullptr : all.back().get<DictPtr>();
  const Value* found = last ? (*last)->find(std::string_view("content")) : nullptr;
  if (found == nullptr) value_error("continue_final_message is set but there is no final message with content");
  Value content = *found;
  std::string text = mark(content);
  all.back() = with_item(all.back(), "content", std::move(content));
  messages = make_list(std::move(all));
  return text;
}

void cut(Rendered& rendered, const std::string& final_text) {
  const auto at = rendered.text.rfind(kBareMark);
  const std::string bare = strip_text(final_text, Value(), true, true);
  if (at == std::string::npos || rendered.text.find(bare) == std::string::npos)
    value_error(
        "continue_final_message is set but the final message does not appear in the chat after applying the chat "
        "template! This can happen if the chat template deletes portions of the final message. Please verify the chat "
        "template and final message in your chat to ensure they are compatible.");
  // Where the template trims the message, what it trimmed must not come back.
  const bool trimmed = rendered.text.compare(at, kMark.size(), kMark) != 0;
  rendered.text.resize(at);
  if (trimmed) rendered.text = strip_text(rendered.text, Value(), false, true);
}

}  // namespace

Rendered render_chat(const Template& chat_template, std::map<std::string, Value> row, const RenderLimits& limits) {
  row.emplace("tools", Value());
  row.emplace("documents", Value());
  row.emplace("add_generation_prompt", false);
  const auto it = row.find("continue_final_message");
  const bool proceed = it != row.end() && truth(it->second);
  if (it != row.end()) row.erase(it);
  if (!proceed) return chat_template.render(row, limits);
  if (truth(row["add_generation_prompt"]))
    value_error(
        "continue_final_message and add_generation_prompt are not compatible: the one continues the last "
        "message, the other begins a new one");
  const std::string final_text = mark_last(row["messages"]);
  Rendered out = chat_template.render(row, limits);
  cut(out, final_text);
  return out;
}

const char* builtin_template(std::string_view name) {
  if (name == "chatml")
    return "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
           "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif "
           "%}";
  if (name == "zephyr")
    return "{% for message in messages %}{% if message['role'] in ['system', 'user', 'assistant'] %}{{ '<|' + "
           "message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}{% endif %}{% if loop.last and "
           "add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}";
  return nullptr;
}

}  // namespace tessera::chat
