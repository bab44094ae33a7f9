#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "tessera/base/error.h"
#include "text/special_defaults.h"
#include "text/special_names.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Not simdjson: published files say "model_max_length": 1000000000000000019884624838656, which it refuses as a number.
json read_object(const std::string& file) {
  json root;
  try {
    root = json::parse(read_file(file));
  } catch (const json::exception& e) {
    throw DataError(fmt::format("{}: expected a JSON object: {}", file, e.what()), file);
  }
  if (!root.is_object())
    throw DataError(fmt::format("{}: expected a JSON object, found {}", file, root.type_name()), file);
  return root;
}

// A token is a string or an object with "content"; anything else: not given.
std::string token_of(const json& value) {
  const json& content = value.is_object() && value.contains("content") ? value["content"] : value;
  return content.is_string() ? content.get<std::string>() : "";
}

void take(const json& root, const char* key, std::string& out) {
  const auto it = root.find(key);
  if (it == root.end()) return;
  if (it->is_null()) out.clear();  // the class has one by default, this tokenizer has none
  if (auto token = token_of(*it); !token.empty()) out = std::move(token);
}

void take(const json& root, const char* key, std::optional<bool>& out) {
  const auto it = root.find(key);
  if (it != root.end() && it->is_boolean()) out = it->get<bool>();
}

void take_special(const json& root, SpecialTokens& out) {
  for (const auto& [name, token] : kSpecialNames) take(root, name, out.*token);
  const auto additional = root.find("additional_special_tokens");
  if (additional == root.end() || !additional->is_array()) return;
  out.additional.clear();
  for (const auto& item : *additional)
    if (auto token = token_of(item); !token.empty()) out.additional.push_back(std::move(token));
}

void take_added(const json& root, const std::string& file, std::vector<AddedToken>& out) {
  const auto it = root.find("added_tokens_decoder");
  if (it == root.end() || !it->is_object()) return;
  for (const auto& [id, value] : it->items()) {
    AddedToken token;
    token.content = token_of(value);
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos || !value.is_object() ||
        token.content.empty())
      throw DataError(
          fmt::format("{}: added_tokens_decoder.{}: expected a token id and an object with \"content\"", file, id),
          file);
    token.id = std::stoi(id);
    token.single_word = value.value("single_word", false);
    token.lstrip = value.value("lstrip", false);
    token.rstrip = value.value("rstrip", false);
    token.special = value.value("special", false);
    token.normalized = value.value("normalized", !token.special);
    out.push_back(std::move(token));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

// A template, or several as [{"name": ..., "template": ...}].
void take_templates(const json& root, std::map<std::string, std::string>& out) {
  const auto it = root.find("chat_template");
  if (it == root.end()) return;
  if (it->is_string()) out["default"] = it->get<std::string>();
  if (!it->is_array()) return;
  for (const auto& item : *it)
    if (item.is_object() && item.contains("name") && item.contains("template") && item["name"].is_string() &&
        item["template"].is_string())
      out[item["name"].get<std::string>()] = item["template"].get<std::string>();
}

void take_extra_ids(const json& root, const std::string& file, std::optional<int>& out) {
  const auto count = root.find("extra_ids");
  if (count == root.end()) return;
  if (!count->is_number_integer() || count->get<std::int64_t>() < 0 || count->get<std::int64_t>() > 10000)
    throw DataError(fmt::format("{}: \"extra_ids\" must be an integer from 0 to 10000", file), file);
  out = count->get<int>();
}

void read_config(const std::string& file, TokenizerConfig& out) {
  const auto root = read_object(file);
  out.found = true;
  take(root, "tokenizer_class", out.tokenizer_class);
  auto special = special_defaults(out.family());
  override_special(out.special, special);
  out.special = std::move(special);
  take_special(root, out.special);
  try {
    take_added(root, file, out.added_tokens);
  } catch (const json::exception& e) {
    throw DataError(fmt::format("{}: added_tokens_decoder: {}", file, e.what()), file);
  }
  take_templates(root, out.chat_templates);
  take_extra_ids(root, file, out.extra_ids);
  take(root, "add_prefix_space", out.add_prefix_space);
  take(root, "add_bos_token", out.add_bos_token);
  take(root, "add_eos_token", out.add_eos_token);
  take(root, "legacy", out.legacy);
  take(root, "clean_up_tokenization_spaces", out.clean_up_tokenization_spaces);
  take(root, "do_lower_case", out.do_lower_case);
  take(root, "strip_accents", out.strip_accents);
  take(root, "tokenize_chinese_chars", out.tokenize_chinese_chars);
}

}  // namespace

std::string TokenizerConfig::family() const {
  std::string out = tokenizer_class;
  for (const std::string suffix : {"Fast", "Tokenizer"})
    if (out.ends_with(suffix)) out.resize(out.size() - suffix.size());
  return out;
}

TokenizerConfig read_tokenizer_config(const std::string& folder) {
  TokenizerConfig out;
  out.folder = folder.empty() ? "." : folder;
  const fs::path path(out.folder);
  if (const auto file = path / "special_tokens_map.json"; fs::exists(file))
    take_special(read_object(file.string()), out.special);
  if (const auto file = path / "tokenizer_config.json"; fs::exists(file)) read_config(file.string(), out);
  // transformers 4.51 and later save templates as files of their own; these win.
  if (const auto file = path / "chat_template.jinja"; fs::exists(file))
    out.chat_templates["default"] = read_file(file.string());
  if (fs::is_directory(path / "additional_chat_templates"))
    for (const auto& entry : fs::directory_iterator(path / "additional_chat_templates"))
      if (entry.path().extension() == ".jinja")
        out.chat_templates[entry.path().stem().string()] = read_file(entry.path().string());
  if (const auto file = path / "config.json"; fs::exists(file))
    take(read_object(file.string()), "model_type", out.model_type);
  return out;
}

}  // namespace tessera::text
