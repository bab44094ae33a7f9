#include <fmt/format.h>
#include <simdjson.h>

#include <filesystem>

#include "base/file.h"
#include "tessera/base/error.h"
#include "text/load.h"

namespace tessera::text {
namespace {

using simdjson::dom::element;

// A token is a string or an object with "content"; null and anything else: not given.
void take(const element& root, const char* key, std::string& out) {
  element value;
  std::string_view text;
  if (root[key].get(value)) return;
  if (!value.get(text) || !value["content"].get(text)) out = text;
}

void read(const std::string& file, TokenizerConfig& out) {
  if (!std::filesystem::exists(file)) return;
  simdjson::dom::parser parser;
  element root;
  const auto bytes = read_file(file);
  if (auto error = parser.parse(bytes).get(root); error || !root.is_object())
    throw DataError(fmt::format("{}: expected a JSON object: {}", file, simdjson::error_message(error)), file);
  take(root, "pad_token", out.special.pad);
  take(root, "eos_token", out.special.eos);
  take(root, "bos_token", out.special.bos);
  take(root, "unk_token", out.special.unk);
  element count;
  if (root["extra_ids"].get(count)) return;
  std::int64_t n = -1;
  if (count.get(n) || n < 0 || n > 10000)
    throw DataError(fmt::format("{}: \"extra_ids\" must be an integer from 0 to 10000", file), file);
  out.extra_ids = static_cast<int>(n);
}

}  // namespace

TokenizerConfig read_tokenizer_config(const std::string& folder) {
  TokenizerConfig out;
  const std::filesystem::path path(folder.empty() ? "." : folder);
  read((path / "special_tokens_map.json").string(), out);
  read((path / "tokenizer_config.json").string(), out);
  return out;
}

}  // namespace tessera::text
