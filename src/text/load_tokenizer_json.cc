#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/plain_reason.h"
#include "text/class_rules.h"
#include "text/json_parts.h"
#include "text/load.h"

namespace tessera::text {
namespace {

AddedToken read_token(const JsonPlace& json) {
  AddedToken token;
  const auto id = json.at("id").integer();
  if (id < 0 || id > 0x7FFFFFFE) json.at("id").fail("expected a token id");
  token.id = static_cast<std::int32_t>(id);
  token.content = json.at("content").string();
  token.single_word = json.boolean_or("single_word", false);
  token.lstrip = json.boolean_or("lstrip", false);
  token.rstrip = json.boolean_or("rstrip", false);
  token.special = json.boolean_or("special", false);
  token.normalized = json.boolean_or("normalized", !token.special);
  return token;
}

// The configuration's tokens that the file lacks are added, and so are its special tokens.
AddedTokens added_tokens(const JsonPlace& root, const TokenizerConfig& config, const Pipeline& pipeline) {
  // Where the vocabulary's ids have gaps, upstream counts tokens, not ids.
  AddedTokenList list(*pipeline.model, {}, pipeline.model->count());
  std::set<std::int32_t> ids;
  if (root.has("added_tokens"))
    for (const auto& json : root.at("added_tokens").items()) {
      auto token = read_token(json);
      ids.insert(token.id);
      list.add(std::move(token));
    }
  auto special = special_list(config.special);
  for (const auto& [name, token] : config.special.extra) special.push_back(token);
  // A list of all added tokens says everything of them; without it, tokenizer.json does.
  const auto says_all = [&](const std::string& content) {
    const auto& said = config.added_tokens;
    return config.has_added_tokens_decoder
               ? std::any_of(said.begin(), said.end(), [&](const auto& token) { return token.content == content; })
               : !config.is_converted && list.has(content);
  };
  std::vector<AddedToken> flagged;
  for (const auto& token : config.flagged)
    if (!says_all(token.content)) flagged.push_back(token);
  if (config.class_mask && !(config.mask_is_named && says_all(config.class_mask->content)))
    flagged.push_back(*config.class_mask);
  for (auto token : config.added_tokens) {
    if (!config.has_added_tokens_decoder && ids.contains(token.id)) continue;  // added_tokens.json knows less
    token.special |= std::find(special.begin(), special.end(), token.content) != special.end();
    list.add(std::move(token));
  }
  if (!config.found) special.clear();
  for (const auto& content : special) {
    const auto own = std::find_if(flagged.begin(), flagged.end(), [&](const auto& t) { return t.content == content; });
    if (own != flagged.end())
      list.add(*own);
    else if (!list.has(content))
      list.add({.content = content, .special = true});
  }
  return AddedTokens(list.take(), pipeline.normalizer.get(), pipeline.special_in_text);
}

// Without a tokenizer_config.json beside the file, the model and the usual names tell what a special token is for.
void guess_special(const AddedTokens& added, const Model& model, SpecialTokens& special) {
  if (special.unk.empty() && model.unk_id() >= 0) special.unk = model.token(model.unk_id());
  constexpr std::array kPad{"<pad>", "[PAD]", "<|pad|>"}, kEos{"</s>", "<|end_of_text|>", "<|im_end|>"};
  const auto guess = [&](const auto& names, std::string& out) {
    for (const auto* name : names)
      if (out.empty() && added.find(std::string_view(name))) out = name;
  };
  guess(kPad, special.pad);
  guess(kEos, special.eos);
}

}  // namespace

Pipeline parse_tokenizer_json(std::string_view json, std::shared_ptr<const TokenizerSource> source,
                              const std::string& name, const TokenizerConfig& config) {
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  const simdjson::padded_string padded(json);
  if (auto error = parser.parse(padded).get(element); error || !element.is_object())
    throw DataError(fmt::format("{}: expected a JSON object: {}", name, plain_reason(simdjson::error_message(error))),
                    name);
  const JsonPlace root(element, name, "");
  Pipeline out;
  out.source = std::move(source);
  if (root.has("normalizer")) out.normalizer = json_normalizer(root.at("normalizer"));
  if (root.has("pre_tokenizer")) out.pre_tokenizer = json_pre_tokenizer(root.at("pre_tokenizer"));
  out.model = json_model(root.at("model"), out.source->json.empty() ? Origin::kFile : Origin::kConverted);
  if (root.has("post_processor")) out.post_processor = json_post_processor(root.at("post_processor"));
  if (root.has("decoder")) out.decoder = json_decoder(root.at("decoder"));
  out.special = config.special;
  out.tokenizer_class = config.tokenizer_class;
  if (config.found && !config.pad_is_given && root.has("padding"))
    out.special.pad = root.at("padding").string_or("pad_token", "");
  out.chat_templates = config.chat_templates;
  out.clean_up_tokenization_spaces = config.clean_up_tokenization_spaces.value_or(false);
  out.special_in_text = config.special_in_text;
  out.added_tokens = added_tokens(root, config, out);
  if (config.found)
    apply_class_rules(root, config, out);
  else
    guess_special(out.added_tokens, *out.model, out.special);
  return out;
}

void take_added_tokens(const std::string& file, TokenizerConfig& config) {
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  const simdjson::padded_string padded(read_file(file));
  if (auto error = parser.parse(padded).get(element); error || !element.is_object())
    throw DataError(fmt::format("{}: expected a JSON object: {}", file, plain_reason(simdjson::error_message(error))),
                    file);
  const JsonPlace root(element, file, "");
  if (!root.has("added_tokens")) return;
  for (const auto& json : root.at("added_tokens").items()) config.added_tokens.push_back(read_token(json));
  std::multimap<std::int32_t, AddedToken> by_id;  // those of one id stay in their order
  for (auto& token : config.added_tokens) by_id.emplace(token.id, std::move(token));
  config.added_tokens.clear();
  for (auto& [id, token] : by_id) config.added_tokens.push_back(std::move(token));
}

Pipeline load_tokenizer_json(const std::string& file, const TokenizerConfig& config) {
  auto source = std::make_shared<TokenizerSource>();
  source->file = file;
  source->folder = config.folder;
  return parse_tokenizer_json(read_file(file), source, file, config);
}

}  // namespace tessera::text
