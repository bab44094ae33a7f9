#include "chat/tokenizer_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <optional>

#include "base/file.h"
#include "base/nearest.h"
#include "base/open_file.h"
#include "chat/chat_template.h"
#include "chat/jinja/json.h"
#include "chat/jinja/template_error.h"
#include "formats/gguf.h"
#include "formats/model_folder.h"
#include "tessera/base/error.h"
#include "text/special_names.h"
#include "text/tokenizer_config.h"

namespace tessera::chat {
namespace {

namespace fs = std::filesystem;

// chat_template.json, a processor's: {"chat_template": ...}.
std::optional<std::string> processor_template(const fs::path& file) {
  if (!is_there(file)) return std::nullopt;
  Value root;
  try {
    root = parse_json(read_file(file.string()));
  } catch (const TemplateError& e) {
    throw DataError(fmt::format("{}: {}", file.string(), e.message), file.string());
  }
  const auto* object = root.get<DictPtr>();
  const Value* source = object ? (*object)->find(std::string_view("chat_template")) : nullptr;
  return source != nullptr && source->is_text() ? std::optional(source->text()) : std::nullopt;
}

void take(TokenizerTemplates& out, const std::string& name, std::string source, const fs::path& file) {
  out.templates[name] = std::move(source);
  out.files[name] = file.string();
}

}  // namespace

const std::string& TokenizerTemplates::choose(const std::string& name, bool with_tools) const {
  return templates.at(known(name, with_tools));
}

const std::string& TokenizerTemplates::file_of(const std::string& name, bool with_tools) const {
  return files.at(known(name, with_tools));
}

std::string TokenizerTemplates::wanted(const std::string& name, bool with_tools) const {
  if (!name.empty()) return name;
  return with_tools && templates.contains("tool_use") ? "tool_use" : "default";
}

std::string TokenizerTemplates::known(const std::string& name, bool with_tools) const {
  if (templates.empty())
    throw DataError(fmt::format("{}: this tokenizer has no chat template (chat_template in tokenizer_config.json, or "
                                "chat_template.jinja); name one with --chat_template FILE",
                                folder),
                    folder);
  if (has(name, with_tools)) return wanted(name, with_tools);
  std::vector<std::string> names;
  for (const auto& [own, source] : templates) names.push_back(own);
  const std::string missing = wanted(name, with_tools);
  throw DataError(fmt::format("{}: no chat template named '{}'{}; there are: {}", folder, missing,
                              did_you_mean(missing, names), fmt::join(names, ", ")),
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

std::map<std::string, Value> template_variables(const text::SpecialTokens& tokens) {
  std::map<std::string, Value> out;
  for (const auto& [name, token] : text::kSpecialNames)
    if (!(tokens.*token).empty()) out[name] = Value(tokens.*token);
  if (!tokens.additional.empty())
    out["additional_special_tokens"] =
        make_list(std::vector<Value>(tokens.additional.begin(), tokens.additional.end()));
  for (const auto& [name, token] : tokens.extra) out[name] = Value(token);
  return out;
}

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
  auto config = text::read_tokenizer_config(folder.string());
  TokenizerTemplates out;
  out.folder = folder.string();
  out.templates = std::move(config.chat_templates);
  out.files = std::move(config.template_files);
  out.special_tokens = template_variables(config.special);
  const auto file = folder / kProcessorTemplate;
  if (out.templates.empty())
    if (auto source = processor_template(file)) take(out, "default", *std::move(source), file);
  return out;
}

}  // namespace tessera::chat
