#include "tasks/render.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>

#include "base/line_reader.h"
#include "base/open_file.h"
#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "chat/row_templates.h"
#include "config/options.h"
#include "data/chat_rows.h"
#include "hub/model_folder.h"
#include "tasks/rendered_rows.h"
#include "tasks/sft.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using chat::Value;

struct RenderOptions {
  std::string tokenizer, template_file, template_name, input, command;
  data::SftDataOptions data;
};

class Renderer {
 public:
  explicit Renderer(const RenderOptions& options) : options_(options) {
    chat::TokenizerTemplates tokens;
    if (!options.tokenizer.empty()) {
      folder_ = hub::find_settings(options.tokenizer);
      tokens = chat::read_tokenizer_templates(folder_);
    }
    special_tokens_ = tokens.special_tokens;
    auto& data = options_.data;
    if (!options.template_file.empty()) {
      data.chat_template = chat::template_source(options.template_file);
      data.template_place = options.template_file;
      templates_.emplace(data.chat_template, data.template_place);
      return;
    }
    if (!options.template_name.empty()) {
      data.chat_template = tokens.choose(options.template_name, /*with_tools=*/false);
      data.template_place = tokens.file_of(options.template_name, /*with_tools=*/false);
    }
    templates_.emplace(std::move(tokens), options.template_name);
  }

  /// DataError when there is no template, or it cannot be parsed. render() says the latter for each row.
  void check_template() const { templates_->of({}); }

  /// The row's answers as JSON, a line each. DataError where a conversation has no template: that is one error, not one
  /// a row.
  std::string render(const data::SourceRow& row) {
    chat::DictPtr object;
    std::string command = options_.command;
    try {
      object = data::parse_row(row);
      if (command.empty()) command = command_of(*object);
      if (!command.empty()) {
        std::string lines;
        for (auto& answer : training_rows().answers(command, row)) lines += line(std::move(answer));
        return lines;
      }
    } catch (const Error& e) {
      return error(e.what());
    }
    if (!templates_->has({})) check_template();
    return conversation(*object, row);
  }

 private:
  /// Empty: the row is a conversation, or other variables of the template.
  std::string command_of(const chat::Dict& row) const {
    if (folder_.empty() || messages_key(row)) return {};
    return training_command(row, options_.data.dataset_text_field);
  }

  static const char* messages_key(const chat::Dict& row) {
    for (const char* key : {"messages", "conversations"})
      if (row.find(std::string_view(key))) return key;
    return nullptr;
  }

  RenderedRows& training_rows() {
    if (!rows_) rows_.emplace(options_.data, text::open_tokenizer(folder_));
    return *rows_;
  }

  std::string conversation(const chat::Dict& row, const data::SourceRow& source) const {
    std::string place;
    try {
      auto variables = special_tokens_;
      for (const auto& [key, value] : row.items()) variables[key.text()] = value;
      const auto& chosen = templates_->of(variables);
      place = chosen.place;
      set_messages(row, source, chosen.source, variables);
      return answer(chat::render_chat(chosen.source, std::move(variables)));
    } catch (const chat::TemplateError& e) {
      // What raise_exception says is the template author's.
      return error(e.kind == chat::ErrorKind::kRaised ? e.what() : fmt::format("{}: {}", place, e.what()));
    } catch (const DataError& e) {
      return error(e.what());
    }
  }

  // A row of other variables alone is fine for a template that does not read `messages`.
  void set_messages(const chat::Dict& row, const data::SourceRow& source, const chat::Template& chat_template,
                    std::map<std::string, Value>& variables) const {
    const char* key = messages_key(row);
    if (!key) {
      if (!chat_template.reads("messages") && !variables.contains("continue_final_message")) return;
      if (!folder_.empty()) (void)data::kind_of_row(row, options_.data.dataset_text_field, data::where(source));
      data::fail(source, "key \"messages\" is missing; --tokenizer shows rows of other kinds, too");
    }
    const auto& given = *row.find(std::string_view(key));
    const bool as_they_are = key == std::string_view("messages") && given.is<chat::ListPtr>();
    if (!as_they_are) {
      variables["messages"] = data::read_messages(row, source);
      return;
    }
    std::size_t i = 0;
    for (const auto& message : chat::iterate(given)) {
      if (!message.is<chat::DictPtr>())
        data::fail(source, fmt::format("key \"messages[{}]\" must be an object with \"role\" and \"content\", found {}",
                                       i, chat::type_name(message)));
      ++i;
    }
  }

  static std::string line(chat::Dict answer) {
    chat::JsonStyle style;
    style.escape_line_separators = true;
    return chat::dump_json(chat::make_dict(std::move(answer)), style) + "\n";
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

  RenderOptions options_;
  std::string folder_;  // of the tokenizer; empty: none is named
  std::map<std::string, Value> special_tokens_;
  std::optional<chat::RowTemplates> templates_;
  std::optional<RenderedRows> rows_;
};

/// Tables and JSON arrays are read like data files; all else a line at a time, as it comes.
bool is_table(const std::string& file) {
  return data::is_data_file(file) && !file.ends_with(".jsonl") && !file.ends_with(".ndjson") && !file.ends_with(".txt");
}

/// Calls `visit` for each row.
template <class Visit>
void for_each_row(const RenderOptions& options, std::ostream& out, const Visit& visit) {
  data::SourceRow row;
  if (is_table(options.input)) {
    const auto rows = data::open_rows(options.input, options.data.dataset_text_field);
    while (rows->next(row)) visit(row);
    return;
  }
  std::optional<OpenFile> file;
  if (!options.input.empty()) file.emplace(options.input, OpenFile::Takes::kPipes);
  const std::string name = file ? options.input : "standard input";
  LineReader lines(file ? file->descriptor() : STDIN_FILENO, name, [&] { out.flush(); });
  row.file = &name;
  for (std::string_view line; lines.next(line);) {
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    row.number = lines.number();
    row.json = line;
    visit(row);
  }
}

}  // namespace

int render(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  RenderOptions options;
  config::OptionTable table(
      "tessera render",
      "shows what the model reads of rows: reads one JSON object a line from stdin and prints one a line. Of "
      "{\"messages\": [...]} and any other variable of the template (tools, documents, add_generation_prompt, "
      "bos_token "
      "...): {\"text\": ..., \"generation_spans\": [[begin, end], ...]} (in code points). Of other rows of training "
      "data "
      "what the tokenizer makes of them: {\"prompt\": ..., \"completion\": ...} where the loss counts what is behind "
      "the "
      "prompt, {\"text\": ...} where it counts all, {\"prompt\", \"chosen\", \"rejected\"} of pairs. Of a row that is "
      "malformed or that the template refuses: {\"error\": ...}. Exits 0 when every row was answered, be it with an "
      "error");
  table.example("--tokenizer HuggingFaceTB/SmolLM2-135M-Instruct --input chats.jsonl");
  const char* group = "Template";
  table.add(&options.tokenizer, {"--tokenizer"}, "tokenizer folder: its chat template and special tokens", group)
      .placeholder("PATH");
  table
      .add(&options.template_file, {"--template", "--chat_template", "--chat_template_format"},
           "file of a Jinja template, or chatml or zephyr", group)
      .placeholder("FILE");
  table.add(&options.template_name, {"--template_name"},
            "which of the tokenizer's templates; default: tool_use for rows with tools where it exists, else default",
            group);
  group = "Rows";
  table.add(&options.input, {"--input"}, "read this file instead of stdin; .json, .csv, .tsv, .parquet, too", group)
      .placeholder("FILE");
  table
      .add(&options.command, {"--task"},
           "the command that trains on the rows; none: rows with messages are rendered, of others the columns say it",
           group)
      .choices(RenderedRows::commands());
  add_row_reading_flags(table, options.data, group);
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  if (options.tokenizer.empty() && options.template_file.empty())
    throw ConfigError("name a tokenizer folder with --tokenizer PATH or a template with --template FILE", "tokenizer");
  if (options.tokenizer.empty() && !options.command.empty())
    throw ConfigError("--task shows the rows as a model's tokenizer cuts them: name it with --tokenizer", "tokenizer");
  Renderer renderer(options);
  bool any = false;
  for_each_row(options, out, [&](const data::SourceRow& row) {
    out << renderer.render(row);
    any = true;
  });
  if (!any) renderer.check_template();
  out.flush();
  return 0;
}

}  // namespace tessera::tasks
