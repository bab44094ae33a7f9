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

// What it gives lies in the parser.
JsonPlace parse_object(simdjson::dom::parser& parser, std::string_view json, const std::string& name) {
  simdjson::dom::element element;
  if (auto error = parser.parse(json.data(), json.size()).get(element); error || !element.is_object())
    throw DataError(fmt::format("{}: expected a JSON object: {}", name, plain_reason(simdjson::error_message(error))),
                    name);
  return {element, name, ""};
}

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

std::vector<AddedToken> file_tokens(const JsonPlace& root) {
  std::vector<AddedToken> out;
  if (root.has("added_tokens"))
    for (const auto& json : root.at("added_tokens").items()) out.push_back(read_token(json));
  return out;
}

// Behind bos, eos, unk and sep.
std::ptrdiff_t place_of_pad(const TokenizerConfig& config) {
  const auto& special = config.special;
  const std::set<std::string> before{special.bos, special.eos, special.unk, special.sep};
  return std::count_if(config.named.begin(), config.named.end(),
                       [&](const NamedToken& named) { return before.contains(named.content); });
}

// The file's tokens; then once more all that are listed, by id, and the special tokens that are in neither or have
// flags of their own.
AddedTokens added_tokens(const JsonPlace& root, const TokenizerConfig& config, const Pipeline& pipeline) {
  // Where the vocabulary's ids have gaps, upstream counts tokens, not ids.
  AddedTokenList list(pipeline.model->count());
  const auto own = file_tokens(root);
  list.add(own, *pipeline.model);
  std::map<std::int32_t, AddedToken> listed;
  auto without_flags = config.without_flags;
  for (const auto& token : config.added_tokens) listed[token.id] = token;
  if (!config.has_added_tokens_decoder && !config.is_converted)
    for (const auto& token : own) {  // added_tokens.json knows less
      listed[token.id] = token;
      without_flags.erase(token.content);
    }
  auto all_named = config.named;
  const auto& pad = pipeline.special.pad;
  if (pad != config.special.pad) all_named.insert(all_named.begin() + place_of_pad(config), {pad, {}});
  std::set<std::string> special, known;
  for (const auto& named : all_named) special.insert(named.content);
  std::vector<AddedToken> batch;
  for (auto& [id, token] : listed) {
    token.special |= special.contains(token.content);
    known.insert(token.content);
    batch.push_back(std::move(token));
  }
  for (const auto& named : all_named) {
    const bool is_listed = known.contains(named.content);
    if (!config.found || (named.yields && is_listed && !without_flags.contains(named.content))) continue;
    if (const auto& flags = named.flags || !config.is_converted ? named.flags : named.slow_flags) {
      auto token = *flags;
      if (config.is_converted) token.normalized = token.is_normalized();  // slow tokenizers settle it here
      token.special = true;
      batch.push_back(std::move(token));
    } else if (!is_listed && !list.find(named.content)) {
      batch.push_back({.content = named.content, .special = true});
    }
  }
  list.add(batch, *pipeline.model);
  return AddedTokens(std::move(list), pipeline.normalizer.get(), pipeline.special_in_text);
}

Side file_truncation_side(const JsonPlace& root) {
  const bool cuts = root.has("truncation");
  return cuts && root.at("truncation").string_or("direction", "") == "Left" ? Side::kLeft : Side::kRight;
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
  const JsonPlace root = parse_object(parser, json, name);
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
  out.gives_type_ids = config.gives_type_ids;
  out.special_in_text = config.special_in_text;
  out.truncation_side = config.truncation_side.value_or(file_truncation_side(root));
  out.added_tokens = added_tokens(root, config, out);
  if (config.found)
    apply_class_rules(root, config, out);
  else
    guess_special(out.added_tokens, *out.model, out.special);
  return out;
}

void take_added_tokens(const std::string& file, TokenizerConfig& config) {
  simdjson::dom::parser parser;
  const JsonPlace root = parse_object(parser, read_file(file), file);
  std::map<std::int32_t, AddedToken> by_id;
  for (auto& token : config.added_tokens) by_id[token.id] = std::move(token);
  for (auto& token : file_tokens(root)) {
    config.without_flags.erase(token.content);
    by_id[token.id] = std::move(token);
  }
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
