// tessera render: what a chat template makes of conversations.
#include <fmt/format.h>

#include <unistd.h>

#include <optional>

#include "base/line_reader.h"
#include "base/open_file.h"
#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "chat/row_templates.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "config/options.h"
#include "hub/model_folder.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

using chat::Value;

struct RenderOptions {
  std::string tokenizer, template_file, template_name, input;
};

class Renderer {
 public:
  /// DataError where there is no template: that is one error, not one a row.
  explicit Renderer(const RenderOptions& options) {
    chat::TokenizerTemplates tokens;
    if (!options.tokenizer.empty()) tokens = chat::read_tokenizer_templates(hub::find_settings(options.tokenizer));
    special_tokens_ = tokens.special_tokens;
    if (options.template_file.empty()) {
      tokens.choose(options.template_name, /*with_tools=*/false);
      templates_.emplace(std::move(tokens), options.template_name);
    } else {
      templates_.emplace(chat::template_source(options.template_file), options.template_file);
    }
  }

  /// DataError when the template cannot be parsed. render() says the same for each row.
  void check_template() const { templates_->of({}); }

  /// The row's answer as JSON.
  std::string render(std::string_view line, std::int64_t number) {
    std::string place;
    try {
      const Value row = parse_row(line, number);
      auto variables = special_tokens_;
      for (const auto& [key, value] : (*row.get<chat::DictPtr>())->items()) variables[key.text()] = value;
      const auto& chosen = templates_->of(variables);
      place = chosen.place;
      check_messages(variables, chosen.source, number);
      return answer(chat::render_chat(chosen.source, std::move(variables)));
    } catch (const chat::TemplateError& e) {
      // What raise_exception says is the template author's.
      return error(e.kind == chat::ErrorKind::kRaised ? e.what() : fmt::format("{}: {}", place, e.what()));
    } catch (const DataError& e) {
      return error(e.what());
    }
  }

 private:
  static Value parse_row(std::string_view line, std::int64_t number) {
    Value row;
    try {
      row = chat::parse_json(line);
    } catch (const chat::TemplateError& e) {
      throw DataError(fmt::format("row {}: {}", number, e.message), {}, number);
    }
    if (!row.is<chat::DictPtr>())
      throw DataError(fmt::format("row {}: expected a JSON object with the key \"messages\", found {}", number,
                                  chat::type_name(row)),
                      {}, number);
    return row;
  }

  // A row of other variables alone is fine for a template that does not read `messages`.
  static void check_messages(const std::map<std::string, Value>& row, const chat::Template& chat_template,
                             std::int64_t number) {
    const auto it = row.find("messages");
    if (it == row.end()) {
      if (!chat_template.reads("messages") && !row.contains("continue_final_message")) return;
      throw DataError(fmt::format("row {}: key \"messages\" is missing", number), {}, number);
    }
    if (!it->second.is<chat::ListPtr>())
      throw DataError(fmt::format("row {}: key \"messages\" must be a list of messages, found {}", number,
                                  chat::type_name(it->second)),
                      {}, number);
    std::size_t i = 0;
    for (const auto& message : chat::iterate(it->second)) {
      if (!message.is<chat::DictPtr>())
        throw DataError(
            fmt::format("row {}: key \"messages[{}]\" must be an object with \"role\" and \"content\", found {}",
                        number, i, chat::type_name(message)),
            {}, number);
      ++i;
    }
  }

  static std::string line(chat::Dict answer) {
    chat::JsonStyle style;
    style.escape_line_separators = true;
    return chat::dump_json(chat::make_dict(std::move(answer)), style);
  }

  static std::string answer(const chat::Rendered& rendered) {
    std::vector<Value> spans;
    for (const auto& [begin, end] : rendered.generation_spans) spans.push_back(chat::make_list({begin, end}));
    chat::Dict out;
    out.set("text", rendered.text);
    out.set("generation_spans", chat::make_list(std::move(spans)));
    return line(std::move(out));
  }

  static std::string error(const std::string& message) {
    chat::Dict out;
    out.set("error", message);
    return line(std::move(out));
  }

  std::map<std::string, Value> special_tokens_;
  std::optional<chat::RowTemplates> templates_;
};

}  // namespace

int render_command(const Arguments& args, std::ostream& out, std::ostream&) {
  RenderOptions options;
  config::OptionTable table(
      "tessera render",
      "shows what a chat template makes of conversations: reads one JSON object a line from stdin, {\"messages\": "
      "[...]} "
      "and any other variable of the template (tools, documents, add_generation_prompt, bos_token ...), and prints one "
      "a line: {\"text\": ..., \"generation_spans\": [[begin, end], ...]} (in code points), or {\"error\": ...} for "
      "a row that is malformed or that the template refuses. Exits 0 when every row was answered, be it with an error");
  table.example("--tokenizer HuggingFaceTB/SmolLM2-135M-Instruct --input chats.jsonl");
  table.add(&options.tokenizer, {"--tokenizer"}, "tokenizer folder: its chat template and special tokens", "Template")
      .placeholder("PATH");
  table
      .add(&options.template_file, {"--template", "--chat_template"}, "file of a Jinja template, or chatml or zephyr",
           "Template")
      .placeholder("FILE");
  table.add(&options.template_name, {"--template_name"},
            "which of the tokenizer's templates; default: tool_use for rows with tools where it exists, else default",
            "Template");
  table.add(&options.input, {"--input"}, "read this file instead of stdin", "Template").placeholder("FILE");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return kSuccess;
  }
  if (options.tokenizer.empty() && options.template_file.empty())
    throw ConfigError("name a tokenizer folder with --tokenizer PATH or a template with --template FILE", "tokenizer");
  std::optional<OpenFile> file;
  if (!options.input.empty()) file.emplace(options.input, OpenFile::Takes::kPipes);
  Renderer renderer(options);
  LineReader lines(file ? file->descriptor() : STDIN_FILENO, file ? options.input : "standard input",
                   [&] { out.flush(); });
  bool any = false;
  for (std::string_view line; lines.next(line);) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    out << renderer.render(line, lines.number()) << "\n";
    any = true;
  }
  if (!any) renderer.check_template();
  out.flush();
  return kSuccess;
}

}  // namespace tessera::cli
