#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/bounded_json.h"
#include "base/line_reader.h"
#include "base/open_file.h"
#include "tasks/conversation.h"
#include "tasks/generate.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using nlohmann::json;

Prompt prompt_of(const json& row, const std::string& where, ConversationRenderer& renderer) {
  if (row.is_string()) return {row.get<std::string>(), true};
  if (row.is_object() && row.contains("messages")) return {renderer.render(row, where), false};
  for (const char* key : {"prompt", "text"}) {
    if (!row.is_object() || !row.contains(key)) continue;
    if (row[key].is_string()) return {row[key].get<std::string>(), true};
    if (row[key].is_array()) {  // a conversation whose last turn is missing
      json chat = row;
      chat["messages"] = row[key];
      chat.erase(key);
      return {renderer.render(chat, where), false};
    }
    throw DataError(where + "key \"" + key + "\" must be a text or a list of messages, found " + row[key].type_name());
  }
  throw DataError(where + "expected a text, or an object with \"prompt\", \"text\" or \"messages\", found " +
                  std::string(row.type_name()));
}

/// What a training row says the answer is: a text, or a list with one message. Removed from the row.
std::optional<std::string> take_completion(json& row) {
  if (!row.is_object() || !row.contains("completion")) return std::nullopt;
  auto completion = std::move(row["completion"]);
  row.erase("completion");
  if (completion.is_array() && completion.size() == 1 && completion[0].is_object())
    completion = completion[0].value("content", json());
  return completion.is_string() ? std::optional(completion.get<std::string>()) : std::nullopt;
}

/// Which adapter the row is for. Removed from it.
std::string take_adapter(json& row, const std::string& where) {
  if (!row.is_object() || !row.contains("adapter")) return "";
  const auto name = std::move(row["adapter"]);
  row.erase("adapter");
  if (name.is_null()) return "";
  if (!name.is_string()) throw DataError(where + "key \"adapter\" must be a name, found " + name.type_name());
  return name.get<std::string>();
}

std::vector<Prompt> read_rows(int descriptor, const std::string& name, ConversationRenderer& renderer) {
  std::vector<Prompt> prompts;
  LineReader lines(descriptor, name);
  for (std::string_view line; lines.next(line);) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const auto where = fmt::format("{}:{}: ", name, lines.number());
    auto row = json::parse(bounded_json(line, name), nullptr, /*allow_exceptions=*/false);
    if (row.is_discarded()) throw DataError(where + "not JSON", name, lines.number());
    auto expected = take_completion(row);
    auto adapter = take_adapter(row, where);
    prompts.push_back(prompt_of(row, where, renderer));
    prompts.back().expected = std::move(expected);
    prompts.back().adapter = std::move(adapter);
  }
  if (prompts.empty()) throw DataError(name + " holds no prompt", name);
  return prompts;
}

}  // namespace

std::vector<Prompt> read_prompts(const GenerateOptions& options, const std::string& tokenizer_folder) {
  ConversationRenderer renderer(tokenizer_folder, options.chat_template);
  if (options.prompt) return {{*options.prompt, true}};
  if (options.message) {
    json messages = json::array();
    if (!options.system_prompt.empty()) messages.push_back({{"role", "system"}, {"content", options.system_prompt}});
    messages.push_back({{"role", "user"}, {"content", *options.message}});
    return {prompt_of({{"messages", messages}}, "--message: ", renderer)};
  }
  if (options.input_file == "-") return read_rows(STDIN_FILENO, "standard input", renderer);
  const OpenFile in(options.input_file, OpenFile::Takes::kPipes);
  return read_rows(in.descriptor(), options.input_file, renderer);
}

}  // namespace tessera::tasks
