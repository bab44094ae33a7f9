#include "data/chat_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using chat::Value;

std::string_view standard_name(std::string_view role) {
  if (role == "human") return "user";
  constexpr std::array<std::string_view, 6> kAnswering{"gpt", "chatgpt", "bard", "bing", "model", "bot"};
  return std::find(kAnswering.begin(), kAnswering.end(), role) != kAnswering.end() ? "assistant" : role;
}

Value check_message(const Value& message, const std::string& key, const SourceRow& source, RoleNames roles) {
  const auto* object = message.get<chat::DictPtr>();
  if (object == nullptr)
    fail(source, fmt::format("key \"{}\" must be an object with \"role\" and \"content\", found {}", key,
                             chat::type_name(message)));
  const auto find = [&](std::string_view name) { return (*object)->find(name); };
  const bool sharegpt = find("role") == nullptr && find("from") != nullptr;
  const char* role = sharegpt ? "from" : "role";
  const char* content = sharegpt ? "value" : "content";
  const Value* who = find(role);
  if (who == nullptr) fail(source, fmt::format("key \"{}.role\" is missing", key));
  if (!who->is_text())
    fail(source, fmt::format("key \"{}.{}\" must be a text, found {}", key, role, called(*who, source)));
  const Value* what = find(content);
  if (what == nullptr && find("tool_calls") == nullptr)
    fail(source, fmt::format("key \"{}.{}\" is missing", key, content));
  if (what != nullptr && !what->is_text() && !what->is_none() && !what->is<chat::ListPtr>())
    fail(source,
         fmt::format("key \"{}.{}\" must be a text or a list of parts, found {}", key, content, called(*what, source)));
  const std::string_view speaker = roles == RoleNames::kStandard ? standard_name(who->text()) : who->text();
  if (!sharegpt && speaker == who->text()) return message;
  chat::Dict out;
  for (const auto& [name, value] : (*object)->items())
    if (name.text() != role && name.text() != content) out.set(name, value);
  out.set("role", speaker);
  if (what != nullptr) out.set("content", *what);
  return chat::make_dict(std::move(out));
}

// Position of the first token from `begin` on that holds the character, or -1.
std::ptrdiff_t token_at(const text::Encoding& encoding, std::int64_t character, std::ptrdiff_t begin) {
  const auto it = std::find_if(encoding.offsets.begin() + begin, encoding.offsets.end(), [&](const auto& offset) {
    return character >= offset.first && character < offset.second;
  });
  return it == encoding.offsets.end() ? -1 : it - encoding.offsets.begin();
}

}  // namespace

Value check_messages(const Value& messages, const std::string& key, const SourceRow& source, RoleNames roles) {
  Value list = messages;
  if (messages.is_text()) {  // of a CSV file
    try {
      list = chat::parse_json(messages.text());
    } catch (const chat::TemplateError&) {
      fail(source, fmt::format("key \"{}\" must be a list of messages, found a text", key));
    }
  }
  if (!list.is<chat::ListPtr>())
    fail(source, fmt::format("key \"{}\" must be a list of messages, found {}", key, called(list, source)));
  std::vector<Value> out;
  for (const auto& message : chat::iterate(list))
    out.push_back(check_message(message, fmt::format("{}[{}]", key, out.size()), source, roles));
  if (out.empty()) fail(source, fmt::format("key \"{}\" is an empty list", key));
  return chat::make_list(std::move(out));
}

Value read_messages(const chat::Dict& row, const SourceRow& source, RoleNames roles) {
  for (const char* key : {"messages", "conversations"})
    if (const Value* found = row.find(std::string_view(key))) return check_messages(*found, key, source, roles);
  fail(source, "key \"messages\" is missing");
}

std::string unusual_role(const Value& messages) {
  for (const auto& message : chat::iterate(messages)) {
    const std::string& role = (*message.get<chat::DictPtr>())->find(std::string_view("role"))->text();
    if (standard_name(role) != role) return role;
  }
  return {};
}

Value make_messages(const std::string& role, const std::string& content) {
  chat::Dict message;
  message.set("role", role);
  message.set("content", content);
  return chat::make_list({chat::make_dict(std::move(message))});
}

std::vector<bool> assistant_mask(const text::Encoding& encoding, const std::vector<chat::Span>& spans) {
  std::vector<bool> mask(encoding.ids.size());
  const auto size = static_cast<std::ptrdiff_t>(mask.size());
  std::ptrdiff_t from = 0;  // spans come in order, and so do tokens
  for (const auto& [begin, end] : spans) {
    const auto first = token_at(encoding, begin, from);
    if (first < 0) break;
    const auto last = token_at(encoding, end - 1, end > begin ? first : 0);
    from = first;
    for (auto i = first; i < (last > 0 ? last + 1 : size); ++i) mask[static_cast<std::size_t>(i)] = true;
  }
  return mask;
}

}  // namespace tessera::data
