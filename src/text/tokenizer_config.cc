#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tessera/base/error.h"
#include "text/load.h"

namespace tessera::text {
namespace {

using nlohmann::json;

// A token is a string or an object with "content"; null and anything else: not given.
void take(const json& root, const char* key, std::string& out) {
  const auto it = root.find(key);
  if (it == root.end()) return;
  const json& value = it->is_object() && it->contains("content") ? it->at("content") : *it;
  if (value.is_string()) out = value.get<std::string>();
}

// Not simdjson: published files say "model_max_length": 1000000000000000019884624838656, which it refuses as a number.
void read(const std::string& file, TokenizerConfig& out) {
  if (!std::filesystem::exists(file)) return;
  json root;
  try {
    root = json::parse(read_file(file));
  } catch (const json::exception& e) {
    throw DataError(fmt::format("{}: expected a JSON object: {}", file, e.what()), file);
  }
  if (!root.is_object())
    throw DataError(fmt::format("{}: expected a JSON object, found {}", file, root.type_name()), file);
  take(root, "pad_token", out.special.pad);
  take(root, "eos_token", out.special.eos);
  take(root, "bos_token", out.special.bos);
  take(root, "unk_token", out.special.unk);
  const auto count = root.find("extra_ids");
  if (count == root.end()) return;
  if (!count->is_number_integer() || count->get<std::int64_t>() < 0 || count->get<std::int64_t>() > 10000) {
    throw DataError(fmt::format("{}: \"extra_ids\" must be an integer from 0 to 10000", file), file);
  }
  out.extra_ids = count->get<int>();
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
