// Any bytes as a JSONL file of chat rows: an error that names the row, or messages that a template takes.
#include "chat/chat_template.h"
#include "chat/jinja/template_error.h"
#include "data/chat_rows.h"
#include "data/sft_tokenize.h"
#include "fuzz/json_lines.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const chat::Template chatml(chat::builtin_template("chatml"));
  const std::string text(reinterpret_cast<const char*>(data), size);
  static const std::string name = "fuzz.jsonl";
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    data::SourceRow row;
    row.file = &name;
    row.number = ++number;
    row.json = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    try {
      const auto object = data::parse_row(row);
      if (data::kind_of_row(*object, "text", data::where(row)) == data::RowKind::kMessages)
        chat::render_chat(chatml, {{"messages", data::read_messages(*object, row)}});
    } catch (const DataError&) {
    } catch (const chat::TemplateError&) {
    }
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, tessera::fuzz::changed_json_lines);
}
