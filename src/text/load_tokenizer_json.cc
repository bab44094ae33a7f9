#include <algorithm>
#include <array>

#include "base/file.h"
#include "text/class_rules.h"
#include "text/json_parts.h"
#include "text/load.h"

namespace tessera::text {
namespace {

AddedToken read_token(const JsonPlace& json) {
  AddedToken token;
  const auto id = json.at("id").integer();
  if (id < 0 || id > 0x7FFFFFFE) json.at("id").fail("expected a token id");
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
  if (root.has("added_tokens"))
    for (const auto& json : root.at("added_tokens").items()) list.add(read_token(json));
  const auto special = special_list(config.special);
  for (auto token : config.added_tokens) {
    token.special |= std::find(special.begin(), special.end(), token.content) != special.end();
    list.add(std::move(token));
  }
  if (config.found)
    for (const auto& content : special)
      if (!list.has(content)) list.add({.content = content, .special = true});
  return AddedTokens(list.take(), pipeline.normalizer.get());
}

// Without a tokenizer_config.json beside the file, the usual names tell what a special token is for.
void guess_special(const AddedTokens& added, SpecialTokens& special) {
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
    throw DataError(fmt::format("{}: expected a JSON object: {}", name, simdjson::error_message(error)), name);
  const JsonPlace root(element, name, "");
  Pipeline out;
  out.source = std::move(source);
  if (root.has("normalizer")) out.normalizer = json_normalizer(root.at("normalizer"));
  if (root.has("pre_tokenizer")) out.pre_tokenizer = json_pre_tokenizer(root.at("pre_tokenizer"));
  out.model = json_model(root.at("model"));
  if (root.has("post_processor")) out.post_processor = json_post_processor(root.at("post_processor"));
  if (root.has("decoder")) out.decoder = json_decoder(root.at("decoder"));
  out.special = config.special;
  out.chat_templates = config.chat_templates;
  out.clean_up_tokenization_spaces = config.clean_up_tokenization_spaces.value_or(false);
  out.added_tokens = added_tokens(root, config, out);
  if (config.found)
    apply_class_rules(root, config, out);
  else
    guess_special(out.added_tokens, out.special);
  return out;
}

Pipeline load_tokenizer_json(const std::string& file, const TokenizerConfig& config) {
  auto source = std::make_shared<TokenizerSource>();
  source->file = file;
  source->folder = config.folder;
  return parse_tokenizer_json(read_file(file), source, file, config);
}

}  // namespace tessera::text
