#include "text/class_rules.h"

#include <algorithm>

#include "text/byte_level.h"
#include "text/special_names.h"

namespace tessera::text {
namespace {

std::int32_t id_of(const std::string& token, const Pipeline& pipeline) {
  const auto* added = pipeline.added_tokens.find(std::string_view(token));
  return added ? added->id : pipeline.model->find(token);
}

// Every class: a ByteLevel pre-tokenizer prefixes a space only if the configuration says so.
void set_prefix_space(const JsonPlace& root, const TokenizerConfig& config, Pipeline& out) {
  if (!root.has("pre_tokenizer")) return;
  const auto json = root.at("pre_tokenizer");
  if (json.at("type").string() != "ByteLevel") return;
  out.pre_tokenizer = make_byte_level(
      {.add_prefix_space = config.add_prefix_space.value_or(false), .use_regex = json.boolean_or("use_regex", true)});
}

// Llama's and Gemma's classes make the post-processor anew from add_bos_token and add_eos_token.
void set_llama_template(const TokenizerConfig& config, Pipeline& out) {
  using Kind = TemplatePart::Kind;
  const auto bos = out.special.bos.empty() ? -1 : id_of(out.special.bos, out);
  const auto eos = out.special.eos.empty() ? -1 : id_of(out.special.eos, out);
  const bool add_bos = config.add_bos_token.value_or(true) && bos >= 0;
  const bool add_eos = config.add_eos_token.value_or(false) && eos >= 0;
  const auto wrap = [&](Kind kind, std::vector<TemplatePart>& parts) {
    if (add_bos) parts.push_back({Kind::kSpecial, {bos}});
    parts.push_back({kind, {}});
    if (add_eos) parts.push_back({Kind::kSpecial, {eos}});
  };
  out.post_processor = {};
  out.post_processor.single.clear();
  out.post_processor.pair.clear();
  wrap(Kind::kFirst, out.post_processor.single);
  wrap(Kind::kFirst, out.post_processor.pair);
  wrap(Kind::kSecond, out.post_processor.pair);
}

// BERT's classes: do_lower_case (default true), strip_accents and tokenize_chinese_chars win over the file.
void set_bert_normalizer(const JsonPlace& root, const TokenizerConfig& config, Pipeline& out) {
  if (!root.has("normalizer") || root.at("normalizer").string_or("type", "") != "BertNormalizer") return;
  const auto json = root.at("normalizer");
  BertNormalizerOptions options;
  options.clean_text = json.boolean_or("clean_text", true);
  options.lowercase = config.do_lower_case.value_or(true);
  options.strip_accents = config.strip_accents.value_or(options.lowercase);
  options.handle_chinese_chars = config.tokenize_chinese_chars.value_or(true);
  out.normalizer = make_bert_normalizer(options);
}

}  // namespace

std::vector<std::string> special_list(const SpecialTokens& special) {
  std::vector<std::string> out;
  const auto take = [&](const std::string& token) {
    if (!token.empty() && std::find(out.begin(), out.end(), token) == out.end()) out.push_back(token);
  };
  for (const auto& [name, token] : kSpecialNames) take(special.*token);
  for (const auto& token : special.additional) take(token);
  return out;
}

void apply_class_rules(const JsonPlace& root, const TokenizerConfig& config, Pipeline& pipeline) {
  set_prefix_space(root, config, pipeline);
  const auto family = config.family();
  if (family == "Llama" || family == "CodeLlama" || family == "Gemma") set_llama_template(config, pipeline);
  if (family == "Bert" || family == "DistilBert" || family == "MPNet" || family == "Electra")
    set_bert_normalizer(root, config, pipeline);
}

}  // namespace tessera::text
