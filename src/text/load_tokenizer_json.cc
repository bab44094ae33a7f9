#include <array>

#include "base/file.h"
#include "text/json_parts.h"
#include "text/load.h"

namespace tessera::text {
namespace {

AddedTokens added_tokens(const JsonPlace& root, const Model& model, const Normalizer* normalizer) {
  std::vector<AddedToken> out;
  if (!root.has("added_tokens")) return {};
  for (const auto& json : root.at("added_tokens").items()) {
    AddedToken token;
    const auto id = json.at("id").integer();
    if (id < 0 || id > 0x7FFFFFFE) json.at("id").fail("expected a token id");
    token.id = static_cast<std::int32_t>(id);
    token.content = json.at("content").string();
    if (const auto known = model.find(token.content); known >= 0) token.id = known;  // as upstream: the model decides
    token.single_word = json.boolean_or("single_word", false);
    token.lstrip = json.boolean_or("lstrip", false);
    token.rstrip = json.boolean_or("rstrip", false);
    token.special = json.boolean_or("special", false);
    token.normalized = json.boolean_or("normalized", !token.special);
    out.push_back(std::move(token));
  }
  return AddedTokens(std::move(out), normalizer);
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

Pipeline load_tokenizer_json(const std::string& file, const TokenizerConfig& config) {
  const auto bytes = read_file(file);
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  if (auto error = parser.parse(bytes).get(element); error || !element.is_object())
    throw DataError(fmt::format("{}: expected a JSON object: {}", file, simdjson::error_message(error)), file);
  const JsonPlace root(element, file, "");
  Pipeline out;
  if (root.has("normalizer")) out.normalizer = json_normalizer(root.at("normalizer"));
  if (root.has("pre_tokenizer")) out.pre_tokenizer = json_pre_tokenizer(root.at("pre_tokenizer"));
  out.model = json_model(root.at("model"));
  if (root.has("post_processor")) out.post_processor = json_post_processor(root.at("post_processor"));
  if (root.has("decoder")) out.decoder = json_decoder(root.at("decoder"));
  out.added_tokens = added_tokens(root, *out.model, out.normalizer.get());
  out.special = config.special;
  guess_special(out.added_tokens, out.special);
  return out;
}

}  // namespace tessera::text
