#include "text/save.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_text.h"
#include "base/open_file.h"
#include "formats/model_folder.h"
#include "tessera/base/error.h"
#include "text/special_names.h"
#include "text/tokenizer_classes.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json flags_of(const AddedToken& token) {
  return {{"content", token.content}, {"single_word", token.single_word},    {"lstrip", token.lstrip},
          {"rstrip", token.rstrip},   {"normalized", token.is_normalized()}, {"special", token.special}};
}

std::vector<AddedToken> by_id(const AddedTokens& tokens) {
  auto out = tokens.tokens();
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return out;
}

Json read_object(const fs::path& file) {
  if (!is_there(file)) return Json::object();
  auto out = Json::parse(read_file(file.string()), nullptr, /*allow_exceptions=*/false);
  return out.is_object() ? out : Json::object();
}

void set_special(const SpecialTokens& special, Json& root) {
  for (const auto& [name, token] : kSpecialNames)
    if (!(special.*token).empty()) root[name] = special.*token;
  if (!special.additional.empty()) root["additional_special_tokens"] = special.additional;
}

std::string tokenizer_config_json(const Pipeline& pipeline) {
  auto root = pipeline.source->folder.empty()
                  ? Json::object()
                  : read_object(fs::path(pipeline.source->folder) / "tokenizer_config.json");
  Json decoder = Json::object();
  for (const auto& token : by_id(pipeline.added_tokens)) decoder[std::to_string(token.id)] = flags_of(token);
  root["added_tokens_decoder"] = std::move(decoder);
  for (const auto& [name, token] : kSpecialNames)
    if (root.contains(name)) root[name] = nullptr;  // what another file took away stays away
  set_special(pipeline.special, root);
  root["clean_up_tokenization_spaces"] = pipeline.clean_up_tokenization_spaces;
  if (!root.contains("tokenizer_class"))
    root["tokenizer_class"] =
        std::string(pipeline.tokenizer_class ? pipeline.tokenizer_class->family : "PreTrained") + "TokenizerFast";
  root.erase("chat_template");
  if (pipeline.chat_templates.size() == 1 && pipeline.chat_templates.contains("default")) {
    root["chat_template"] = pipeline.chat_templates.at("default");
  } else if (!pipeline.chat_templates.empty()) {
    for (const auto& [name, text] : pipeline.chat_templates)
      root["chat_template"].push_back({{"name", name}, {"template", text}});
  }
  std::string text = json_text(root, 2) + "\n";
  // transformers' word for no limit, a whole number that no type here holds: as every file spells it.
  constexpr std::string_view kDouble = "\"model_max_length\": 1e+30",
                             kWhole = "\"model_max_length\": 1000000000000000019884624838656";
  if (const auto at = text.find(kDouble); at != std::string::npos) text.replace(at, kDouble.size(), kWhole);
  return text;
}

}  // namespace

// The list of added tokens takes the old one's place; all other bytes stay, so nothing gets lost.
std::string tokenizer_json(const Pipeline& pipeline) {
  const auto& source = *pipeline.source;
  const auto text = source.file.empty() ? source.json : read_file(source.file);
  Json added = Json::array();
  for (const auto& token : by_id(pipeline.added_tokens)) {
    Json entry = {{"id", token.id}};
    entry.update(flags_of(token));
    added.push_back(std::move(entry));
  }
  simdjson::ondemand::parser parser;
  const simdjson::padded_string padded(text);
  simdjson::ondemand::document document;
  simdjson::ondemand::array old;
  std::string_view span;
  if (!parser.iterate(padded).get(document) && !document["added_tokens"].get_array().get(old) &&
      !old.raw_json().get(span)) {
    const auto begin = static_cast<std::size_t>(span.data() - padded.data());
    return text.substr(0, begin) + json_text(added) + text.substr(begin + span.size());
  }
  const auto brace = text.find('{');
  return text.substr(0, brace + 1) + "\"added_tokens\": " + json_text(added) + "," + text.substr(brace + 1);
}

void add_tokens_of(const Tokenizer& other, Pipeline& pipeline) {
  auto tokens = other.added_tokens();
  std::sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  auto list = pipeline.added_tokens.list();
  for (auto& token : tokens)
    if (!list.find(token.content) && pipeline.model->find(token.content) < 0)
      list.add({std::move(token)}, *pipeline.model);
  pipeline.added_tokens = AddedTokens(std::move(list), pipeline.normalizer.get(), pipeline.special_in_text);
}

void apply_special_tokens(const SpecialTokens& changes, Pipeline& pipeline) {
  override_special(changes, pipeline.special);
  auto list = pipeline.added_tokens.list();
  for (const auto& content : special_list(changes)) {
    const auto* known = pipeline.added_tokens.find(std::string_view(content));
    auto token = known ? *known : AddedToken{.content = content};
    token.special = true;
    list.add({std::move(token)}, *pipeline.model);
  }
  pipeline.added_tokens = AddedTokens(std::move(list), pipeline.normalizer.get(), pipeline.special_in_text);
}

void save_pipeline(const Pipeline& pipeline, const std::string& folder) {
  if (!pipeline.source) throw CheckpointError("this tokenizer was put together from stages and has no files to save");
  ensure_writable_folder(folder);
  const fs::path out(folder), from(pipeline.source->folder);
  const auto json = tokenizer_json(pipeline), config = tokenizer_config_json(pipeline);
  write_file_atomically((out / "tokenizer.json").string(), json);
  write_file_atomically((out / "tokenizer_config.json").string(), config);
  Json map = Json::object();
  set_special(pipeline.special, map);
  write_file_atomically((out / "special_tokens_map.json").string(), json_text(map, 2) + "\n");
  remove_template_files(out);
  if (from.empty() || fs::equivalent(from, out)) return;
  for (const auto& form : tokenizer_forms(TokenizerForms::kSources))
    for (const char* name : {form.file, form.beside})
      if (name != nullptr && is_there(from / name))
        write_file_atomically((out / name).string(), read_file((from / name).string()));
}

}  // namespace tessera::text
