#include "text/class_rules.h"

#include "text/byte_level.h"
#include "text/json_parts.h"

namespace tessera::text {
namespace {

std::int32_t id_of(const std::string& token, const Pipeline& pipeline) {
  const auto* added = pipeline.added_tokens.find(std::string_view(token));
  return added ? added->id : pipeline.model->find(token);
}

PreTokenizerPtr byte_level(const JsonPlace& json, bool add_prefix_space) {
  return make_byte_level({.add_prefix_space = add_prefix_space, .use_regex = json.boolean_or("use_regex", true)});
}

// Every class: a ByteLevel pre-tokenizer prefixes a space only if the configuration says so.
void set_prefix_space(const JsonPlace& root, const TokenizerConfig& config, Pipeline& out) {
  if (!root.has("pre_tokenizer") || (config.has_rule(kOwnPrefix) && !config.add_prefix_space)) return;
  const auto json = root.at("pre_tokenizer");
  const bool wanted = config.add_prefix_space.value_or(false);
  if (json.at("type").string() == "ByteLevel") {
    out.pre_tokenizer = byte_level(json, wanted);
  } else if (config.has_rule(kPrefixesNested) && wanted && json.has("pretokenizers")) {
    out.pre_tokenizer = make_sequence(json_sequence<PreTokenizerPtr>(json, "pretokenizers", [](const JsonPlace& part) {
      return part.at("type").string() == "ByteLevel" ? byte_level(part, true) : json_pre_tokenizer(part);
    }));
  }
}

std::int32_t wrapping_token(const char* flag, const char* name, const std::string& token, const JsonPlace& root,
                            const Pipeline& pipeline) {
  if (token.empty())
    root.fail(
        fmt::format("the tokenizer class puts the {0} around rows ({1} is true), but no {0} is named; name it in "
                    "tokenizer_config.json, or set {1} to false",
                    name, flag));
  return id_of(token, pipeline);
}

// These classes make the post-processor anew from add_bos_token and add_eos_token.
void set_wrapping_template(const JsonPlace& root, const TokenizerConfig& config, Pipeline& out) {
  using Kind = TemplatePart::Kind;
  const auto& special = out.special;
  std::vector<std::int32_t> before, after;
  if (config.add_bos_token.value_or(config.has_rule(kBeginsRows)))
    before = {wrapping_token("add_bos_token", "bos_token", special.bos, root, out)};
  if (config.add_eos_token.value_or(false))
    after = {wrapping_token("add_eos_token", "eos_token", special.eos, root, out)};
  const auto wrap = [&](Kind kind, std::int32_t type_id, std::vector<TemplatePart>& parts) {
    if (!before.empty()) parts.push_back({Kind::kSpecial, before, type_id});
    parts.push_back({kind, {}, type_id});
    if (!after.empty()) parts.push_back({Kind::kSpecial, after, type_id});
  };
  out.post_processor = {};
  out.post_processor.single.clear();
  out.post_processor.pair.clear();
  wrap(Kind::kFirst, 0, out.post_processor.single);
  wrap(Kind::kFirst, 0, out.post_processor.pair);
  wrap(Kind::kSecond, 1, out.post_processor.pair);
}

// do_lower_case (default true), strip_accents and tokenize_chinese_chars win over the file.
void set_bert_normalizer(const JsonPlace& root, const TokenizerConfig& config, Pipeline& out) {
  if (!root.has("normalizer") || root.at("normalizer").string_or("type", "") != "BertNormalizer") return;
  const auto json = root.at("normalizer");
  BertNormalizerOptions options;
  options.clean_text = json.boolean_or("clean_text", true);
  options.lowercase = config.do_lower_case.value_or(true);
  options.strip_accents = config.strip_accents.value_or(options.lowercase);
  options.handle_chinese_chars = config.has_rule(kSpacesIdeographs) ? config.tokenize_chinese_chars.value_or(true)
                                                                    : json.boolean_or("handle_chinese_chars", true);
  out.normalizer = make_bert_normalizer(options);
}

// RoBERTa's kind: what the post-processor does to offsets.
void set_offsets(const JsonPlace& root, const TokenizerConfig& config, Pipeline& out) {
  if (!root.has("post_processor")) return;
  const auto type = root.at("post_processor").at("type").string();
  if (type != "RobertaProcessing" && type != "ByteLevel") return;
  out.post_processor.trims.clear();
  if (config.trim_offsets.value_or(true)) out.post_processor.trims = {{config.add_prefix_space.value_or(false)}};
}

}  // namespace

void apply_class_rules(const JsonPlace& root, const TokenizerConfig& config, Pipeline& pipeline) {
  if (config.family() == "CodeGen" && config.add_bos_token.value_or(false))
    root.fail("CodeGenTokenizerFast cannot add a bos_token; set add_bos_token to false in tokenizer_config.json");
  set_prefix_space(root, config, pipeline);
  if (config.has_rule(kBeginsRows) || config.has_rule(kMayBeginRows)) set_wrapping_template(root, config, pipeline);
  if (config.has_rule(kLowercases)) set_bert_normalizer(root, config, pipeline);
  if (config.has_rule(kTrimsOffsets)) set_offsets(root, config, pipeline);
}

}  // namespace tessera::text
