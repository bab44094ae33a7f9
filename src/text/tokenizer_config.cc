#include "text/tokenizer_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/bounded_json.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/open_file.h"
#include "base/plain_reason.h"
#include "formats/model_folder.h"
#include "tessera/base/error.h"
#include "text/special_names.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;  // new tokens get their ids in the file's order

// Not simdjson: published files say "model_max_length": 1000000000000000019884624838656, which it refuses as a number.
json read_object(const std::string& file) {
  json root;
  try {
    root = json::parse(bounded_json(read_file(file), file));
  } catch (const json::exception& e) {
    throw DataError(fmt::format("{}: expected a JSON object: {}", file, plain_reason(e)), file);
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

AddedToken flagged_token(const json& value) {
  AddedToken token;
  token.content = token_of(value);
  token.single_word = value.value("single_word", false);
  token.lstrip = value.value("lstrip", false);
  token.rstrip = value.value("rstrip", false);
  token.special = value.value("special", false);
  if (value.contains("normalized")) token.normalized = value.value("normalized", false);
  return token;
}

std::optional<AddedToken> given_flags(const json& value) {
  return value.is_object() ? std::optional(flagged_token(value)) : std::nullopt;
}

// What the slow form of a class, from which upstream makes the fast one, makes of a token that is named as a text.
std::optional<AddedToken> slow_flags(std::string_view family, std::string_view name, const std::string& content) {
  const std::string_view names = family == "Llama" || family == "Gemma" ? "bos_token eos_token unk_token pad_token"
                                 : family == "CodeLlama"                ? "bos_token eos_token unk_token"
                                 : family == "T5" || family == "MT5"    ? "eos_token unk_token pad_token"
                                 : family == "DebertaV2"                ? "unk_token"
                                                                        : "";
  if (names.find(name) == std::string_view::npos) return std::nullopt;
  return AddedToken{.content = content, .normalized = family == "DebertaV2", .special = true};
}

// Upstream's order; of one token in several places the first counts, but of one that a list has twice all.
std::vector<NamedToken> named_tokens(const json& root, const TokenizerConfig& config) {
  std::vector<NamedToken> out;
  std::ptrdiff_t seen = 0;  // of `out`, when a list began
  const auto add = [&](NamedToken token) {
    const auto is_same = [&](const NamedToken& other) { return other.content == token.content; };
    if (!token.content.empty() && std::none_of(out.begin(), out.begin() + seen, is_same))
      out.push_back(std::move(token));
  };
  const auto take_one = [&](NamedToken token) {
    seen = std::ssize(out);
    add(std::move(token));
  };
  for (const auto& [name, token] : kSpecialNames) {
    const auto& content = config.special.*token;
    auto flags = given_flags(root.value(name, json()));
    const bool is_mask = token == &SpecialTokens::mask;
    if (!flags && !is_mask && config.has_rule(kFlagsNames)) flags = {.content = content, .special = true};
    if (!flags && is_mask && config.has_rule(kMaskTakesSpace))
      flags = {.content = content, .lstrip = true, .normalized = config.has_rule(kMaskIsNormalized), .special = true};
    take_one({content, std::move(flags), root.contains(name), slow_flags(config.family(), name, content)});
  }
  seen = std::ssize(out);
  for (const auto& value : root.value("additional_special_tokens", json::array()))
    add({token_of(value), given_flags(value)});
  for (const auto& content : config.special.additional) take_one({content, {}});  // the class's own among them
  const auto extra = root.value("extra_special_tokens", json::object());
  for (const auto& value : extra)
    if (extra.is_object() || value.is_object()) take_one({token_of(value), given_flags(value)});
  return out;
}

void take_added(const json& root, const std::string& file, std::vector<AddedToken>& out) {
  const auto it = root.find("added_tokens_decoder");
  if (it == root.end() || !it->is_object()) return;
  for (const auto& [id, value] : it->items()) {
    if (id.empty() || id.size() > 9 || id.find_first_not_of("0123456789") != std::string::npos || !value.is_object() ||
        token_of(value).empty())
      throw DataError(
          fmt::format("{}: added_tokens_decoder.{}: expected a token id and an object with \"content\"", file, id),
          file);
    out.push_back(flagged_token(value));
    out.back().id = std::stoi(id);
  }
}

void take_template(const std::string& name, std::string text, const fs::path& file, TokenizerConfig& out) {
  out.chat_templates[name] = std::move(text);
  out.template_files[name] = file.string();
}

// A template, or several: [{"name": ..., "template": ...}], or {name: template}.
void take_templates(const json& root, const fs::path& file, TokenizerConfig& out) {
  const auto it = root.find("chat_template");
  if (it == root.end() || it->is_null()) return;
  const auto fail = [&](const std::string& expected) {
    throw DataError(fmt::format("{}: {}", file.string(), expected), file.string());
  };
  if (it->is_string()) return take_template("default", it->get<std::string>(), file, out);
  if (!it->is_structured())
    fail(fmt::format("\"chat_template\" must be a text or a list of named templates, found {}", it->type_name()));
  for (const auto& [key, item] : it->items()) {
    const json name = it->is_object()    ? json(key)
                      : item.is_object() ? item.value("name", json())
                                         : json(),
               text = it->is_object()    ? item
                      : item.is_object() ? item.value("template", json())
                                         : json();
    if (!name.is_string() || !text.is_string())
      fail("each entry of \"chat_template\" must have the texts \"name\" and \"template\"");
    take_template(name.get<std::string>(), text.get<std::string>(), file, out);
  }
}

// transformers 4.51 and later save templates as files of their own; where there is one, the configuration's do not
// count.
void take_template_files(const fs::path& folder, TokenizerConfig& out) {
  const auto own = folder / kTemplateFile;
  std::vector<std::pair<std::string, fs::path>> files;
  if (is_there(own)) files.emplace_back("default", own);
  for (const auto& file : named_template_files(folder)) files.emplace_back(file.stem().string(), file);
  if (files.empty()) return;
  out.chat_templates.clear();
  out.template_files.clear();
  for (const auto& [name, file] : files) take_template(name, read_text_file(file.string()), file, out);
}

void take_extra_ids(const json& root, const std::string& file, std::optional<int>& out) {
  const auto count = root.find("extra_ids");
  if (count == root.end()) return;
  if (!count->is_number_integer() || count->get<std::int64_t>() < 0 || count->get<std::int64_t>() > 10000)
    throw DataError(fmt::format("{}: \"extra_ids\" must be an integer from 0 to 10000", file), file);
  out = count->get<int>();
}

// added_tokens.json: {"<|im_start|>": 32000}, from before the configuration held them.
void take_added_json(const json& root, const std::string& file, const SpecialTokens& given, TokenizerConfig& out) {
  const auto special = special_list(given);
  for (const auto& [content, id] : root.items()) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > 0x7FFFFFFE)
      throw DataError(fmt::format("{}: \"{}\": expected a token id", file, content), file);
    AddedToken token{.content = content, .id = id.get<std::int32_t>()};
    token.special = std::find(special.begin(), special.end(), content) != special.end();
    token.normalized = !token.special;
    out.without_flags.insert(content);
    out.added_tokens.push_back(std::move(token));
  }
}

// special_tokens_map.json counts where the configuration does not list all added tokens; then it wins.
void merge_special_map(json map, json& root) {
  const auto call_special = [](json& token) {
    if (token.is_object()) token["special"] = true;
  };
  for (auto& [key, value] : map.items()) {
    call_special(value);
    if (key != "additional_special_tokens" || !value.is_array()) {
      root[key] = value;
      continue;
    }
    auto& list = root[key];
    if (!list.is_array()) list = json::array();
    for (auto& token : value) {
      call_special(token);
      if (std::find(list.begin(), list.end(), token) == list.end()) list.push_back(token);
    }
  }
}

// The class's own special tokens, then the files'; T5's sentinels.
void take_all_special(const json& root, const std::string& file, TokenizerConfig& out) {
  const SpecialTokens none;
  const auto& own = out.tokenizer_class ? out.tokenizer_class->special : none;
  out.special = own;
  take_special(root, out.special);
  out.pad_is_given = !out.special.pad.empty() || root.contains("pad_token") || out.has_rule(kOwnPad);
  auto& additional = out.special.additional;
  if (out.has_rule(kOwnAdditional) && additional != own.additional)
    additional.insert(additional.end(), own.additional.begin(), own.additional.end());
  if (const auto it = root.find("extra_special_tokens"); it != root.end() && it->is_object())
    for (const auto& [name, value] : it->items())
      if (auto token = token_of(value); !token.empty()) out.special.extra[name] = std::move(token);
  if (!out.has_rule(kExtraIds)) return;
  constexpr int kExtraIdsOfT5 = 100;
  const int count = out.extra_ids.value_or(kExtraIdsOfT5);
  const auto given = std::count_if(additional.begin(), additional.end(), [](const std::string& token) {
    return token.find("<extra_id_") != std::string::npos;
  });
  if (given > 0 && count > 0 && given != count)
    throw DataError(
        fmt::format("{}: additional_special_tokens holds {} of the {} <extra_id_N> that extra_ids asks for; "
                    "list all or none",
                    file, given, count),
        file);
  for (int n = 0; n < count && given == 0; ++n) additional.push_back(fmt::format("<extra_id_{}>", n));
}

void take_model_inputs(const json& root, TokenizerConfig& out) {
  std::string name;
  take(root, "tokenizer_class", name);
  const bool is_of_transformers_5 = name == "TokenizersBackend";  // which gives none by itself
  out.gives_type_ids = (!out.tokenizer_class || out.has_rule(kGivesTypeIds)) && !is_of_transformers_5;
  const auto names = root.find("model_input_names");
  if (names == root.end() || !names->is_array()) return;
  out.gives_type_ids = std::find(names->begin(), names->end(), "token_type_ids") != names->end();
}

void take_settings(const json& root, const std::string& file, TokenizerConfig& out) {
  take_templates(root, file, out);
  take_extra_ids(root, file, out.extra_ids);
  take(root, "add_prefix_space", out.add_prefix_space);
  out.prefix_is_null = root.contains("add_prefix_space") && root["add_prefix_space"].is_null();
  take(root, "add_bos_token", out.add_bos_token);
  take(root, "add_eos_token", out.add_eos_token);
  take(root, "legacy", out.legacy);
  take(root, "clean_up_tokenization_spaces", out.clean_up_tokenization_spaces);
  take(root, "do_lower_case", out.do_lower_case);
  take(root, "strip_accents", out.strip_accents);
  take(root, "tokenize_chinese_chars", out.tokenize_chinese_chars);
  take(root, "trim_offsets", out.trim_offsets);
  take(root, "split_by_punct", out.split_by_punct);
  take_model_inputs(root, out);
  if (const auto it = root.find("truncation_side"); it != root.end()) {
    if (*it != "left" && *it != "right")
      throw DataError(
          fmt::format("{}: \"truncation_side\" must be \"left\" or \"right\", found {}", file, json_text(*it)), file);
    out.truncation_side = *it == "left" ? Side::kLeft : Side::kRight;
  }
  std::optional<bool> from_slow, split_special;
  take(root, "from_slow", from_slow);
  take(root, "split_special_tokens", split_special);
  out.from_slow = from_slow.value_or(false);
  if (split_special.value_or(false)) out.special_in_text = AddedTokens::Special::kText;
}

// As AutoTokenizer finds it: tokenizer_config.json, then config.json, then by the type of the model.
const TokenizerClass* find_class(const json& root, const fs::path& folder) {
  std::string name, type;
  take(root, "tokenizer_class", name);
  if (!name.empty()) return find_tokenizer_class(name, (folder / "tokenizer_config.json").string());
  const auto file = folder / "config.json";
  if (!is_there(file)) return nullptr;
  const auto config = read_object(file.string());
  take(config, "tokenizer_class", name);
  take(config, "model_type", type);
  return find_tokenizer_class(name.empty() ? std::string(family_of_model_type(type)) : name, file.string());
}

}  // namespace

TokenizerConfig read_tokenizer_config(const std::string& folder) {
  TokenizerConfig out;
  out.folder = folder.empty() ? "." : folder;
  const fs::path path(out.folder);
  const auto file = (path / "tokenizer_config.json").string(), map = (path / "special_tokens_map.json").string(),
             added = (path / "added_tokens.json").string();
  out.found = is_there(file);
  json root = out.found ? read_object(file) : json::object();
  out.tokenizer_class = find_class(root, path);
  out.found |= out.tokenizer_class != nullptr;
  out.has_added_tokens_decoder = root.contains("added_tokens_decoder");
  if (!out.has_added_tokens_decoder && is_there(map)) merge_special_map(read_object(map), root);
  take_settings(root, file, out);
  try {
    take_all_special(root, file, out);
    out.named = named_tokens(root, out);
    take_added(root, file, out.added_tokens);
  } catch (const json::exception& e) {
    throw DataError(fmt::format("{}: a token: {}", file, plain_reason(e)), file);
  }
  if (!out.has_added_tokens_decoder && is_there(added)) {
    SpecialTokens given;
    take_special(root, given);
    take_added_json(read_object(added), added, given, out);
  }
  std::sort(out.added_tokens.begin(), out.added_tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  take_template_files(path, out);
  return out;
}

}  // namespace tessera::text
