#include "chat/tokenizer_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <filesystem>

#include "base/file.h"
#include "base/nearest.h"
#include "base/open_file.h"
#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "formats/gguf.h"
#include "tessera/base/error.h"

namespace tessera::chat {
namespace {

namespace fs = std::filesystem;
constexpr std::array kTokens{"bos_token", "eos_token", "unk_token", "sep_token",
                             "pad_token", "cls_token", "mask_token"};

// Null where the file does not exist.
DictPtr read_object(const fs::path& file) {
  if (!is_there(file)) return nullptr;
  Value root;
  try {
    root = parse_json(read_file(file.string()));
  } catch (const TemplateError& e) {
    throw DataError(fmt::format("{}: {}", file.string(), e.message), file.string());
  }
  if (!root.is<DictPtr>())
    throw DataError(fmt::format("{}: expected a JSON object, found {}", file.string(), type_name(root)), file.string());
  return *root.get<DictPtr>();
}

// A token is a text or an object with "content".
const Value* token_text(const Value* token) {
  if (token == nullptr) return nullptr;
  if (const auto* object = token->get<DictPtr>()) token = (*object)->find(std::string_view("content"));
  return token != nullptr && token->is_text() ? token : nullptr;
}

void read_special_tokens(const Dict& root, TokenizerTemplates& out) {
  for (const char* name : kTokens)
    if (const Value* token = token_text(root.find(std::string_view(name)))) out.special_tokens[name] = *token;
  const Value* more = root.find(std::string_view("additional_special_tokens"));
  if (more == nullptr || !more->is<ListPtr>()) return;
  std::vector<Value> texts;
  for (const auto& token : iterate(*more))
    if (const Value* text = token_text(&token)) texts.push_back(*text);
  if (!texts.empty()) out.special_tokens["additional_special_tokens"] = make_list(std::move(texts));
}

void take(TokenizerTemplates& out, const std::string& name, std::string source, const fs::path& file) {
  out.templates[name] = std::move(source);
  out.files[name] = file.string();
}

void read_templates(const fs::path& file, const Dict& root, TokenizerTemplates& out) {
  const Value* entry = root.find(std::string_view("chat_template"));
  if (entry == nullptr || entry->is_none()) return;
  if (entry->is_text()) {
    take(out, "default", entry->text(), file);
    return;
  }
  if (const auto* named = entry->get<DictPtr>()) {
    for (const auto& [name, source] : (*named)->items())
      if (name.is_text() && source.is_text()) take(out, name.text(), source.text(), file);
    return;
  }
  if (!entry->is<ListPtr>())
    throw DataError(fmt::format("{}: \"chat_template\" must be a text or a list of named templates, found {}",
                                file.string(), type_name(*entry)),
                    file.string());
  for (const auto& one : iterate(*entry)) {
    const auto* object = one.get<DictPtr>();
    const Value* name = object ? (*object)->find(std::string_view("name")) : nullptr;
    const Value* source = object ? (*object)->find(std::string_view("template")) : nullptr;
    if (name == nullptr || source == nullptr || !name->is_text() || !source->is_text())
      throw DataError(fmt::format("{}: each entry of \"chat_template\" must have the texts \"name\" and \"template\"",
                                  file.string()),
                      file.string());
    take(out, name->text(), source->text(), file);
  }
}

}  // namespace

const std::string& TokenizerTemplates::choose(const std::string& name, bool with_tools) const {
  return templates.at(chosen_name(name, with_tools));
}

const std::string& TokenizerTemplates::file_of(const std::string& name, bool with_tools) const {
  return files.at(chosen_name(name, with_tools));
}

std::string TokenizerTemplates::chosen_name(const std::string& name, bool with_tools) const {
  if (templates.empty())
    throw DataError(fmt::format("{}: this tokenizer has no chat template (chat_template in tokenizer_config.json, or "
                                "chat_template.jinja); name one with --chat_template FILE",
                                folder),
                    folder);
  std::vector<std::string> names;
  for (const auto& [known, source] : templates) names.push_back(known);
  const std::string wanted = !name.empty()                                  ? name
                             : with_tools && templates.contains("tool_use") ? "tool_use"
                                                                            : "default";
  if (templates.contains(wanted)) return wanted;
  throw DataError(fmt::format("{}: no chat template named '{}'{}; there are: {}", folder, wanted,
                              did_you_mean(wanted, names), fmt::join(names, ", ")),
                  folder);
}

namespace {

// tokenizer.chat_template, tokenizer.chat_template.NAME, and the texts of the *_token_id keys.
TokenizerTemplates read_gguf_templates(const std::string& file) {
  const auto header = read_gguf_header(file);
  TokenizerTemplates out;
  out.folder = file;
  const std::string key = "tokenizer.chat_template";
  for (const auto& [name, value] : header.metadata) {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr || !name.starts_with(key)) continue;
    if (name == key) take(out, "default", *text, file);
    if (name.starts_with(key + ".")) take(out, name.substr(key.size() + 1), *text, file);
  }
  const auto* tokens = header.texts("tokenizer.ggml.tokens");
  constexpr std::pair<const char*, const char*> kIds[] = {{"bos", "bos_token"},     {"eos", "eos_token"},
                                                          {"unknown", "unk_token"}, {"padding", "pad_token"},
                                                          {"cls", "cls_token"},     {"mask", "mask_token"}};
  for (const auto& [stored, name] : kIds) {
    const auto id = header.integer(fmt::format("tokenizer.ggml.{}_token_id", stored)).value_or(-1);
    if (tokens != nullptr && id >= 0 && id < static_cast<std::int64_t>(tokens->size()))
      out.special_tokens[name] = (*tokens)[static_cast<std::size_t>(id)];
  }
  return out;
}

}  // namespace

std::string template_source(const std::string& name_or_file) {
  const char* builtin = builtin_template(name_or_file);
  return builtin != nullptr ? builtin : read_text_file(name_or_file);
}

TokenizerTemplates read_tokenizer_templates(const std::string& folder_or_file) {
  fs::path folder(folder_or_file);
  if (!is_there(folder))
    throw DataError(fmt::format("{}: no such file or folder (expected a tokenizer)", folder_or_file), folder_or_file);
  const bool has_config = is_there(folder / "tokenizer_config.json") || is_there(folder / "tokenizer.json");
  if (const auto gguf = has_config ? std::nullopt : find_gguf(folder_or_file)) return read_gguf_templates(*gguf);
  if (!fs::is_directory(folder)) folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  TokenizerTemplates out;
  out.folder = folder.string();
  if (const auto map = read_object(folder / "special_tokens_map.json")) read_special_tokens(*map, out);
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const auto root = read_object(folder / name);
    if (!root) continue;
    read_templates(folder / name, *root, out);
    read_special_tokens(*root, out);
  }
  if (is_there(folder / "additional_chat_templates"))
    for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates"))
      if (entry.path().extension() == ".jinja")
        take(out, entry.path().stem().string(), read_text_file(entry.path().string()), entry.path());
  if (const auto file = folder / "chat_template.jinja"; is_there(file))
    take(out, "default", read_text_file(file.string()), file);
  return out;
}

}  // namespace tessera::chat
