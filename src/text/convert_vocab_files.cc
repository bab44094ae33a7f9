#include <fmt/format.h>

#include <filesystem>

#include "base/bounded_json.h"
#include "base/file.h"
#include "base/json_text.h"
#include "base/plain_reason.h"
#include "tessera/base/error.h"
#include "text/convert.h"
#include "text/json_forms.h"
#include "text/special_names.h"

namespace tessera::text {
namespace {

using nlohmann::json;

template <class F>
void each_line(const std::string& text, F f) {
  for (std::size_t begin = 0; begin < text.size();) {
    auto end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string_view line(text.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(line);
    begin = end + 1;
  }
}

json read_vocabulary(const std::string& file) {
  json out;
  try {
    out = json::parse(bounded_json(read_file(file), file));
  } catch (const json::exception& e) {
    throw DataError(fmt::format("{}: expected an object of token: id: {}", file, plain_reason(e)), file);
  }
  if (!out.is_object()) throw DataError(fmt::format("{}: expected an object of token: id", file), file);
  return out;
}

// Classes other than Qwen2's take the first line for a header, whatever it says, and leave out what no line end
// follows.
json read_merges(const std::string& file, const TokenizerConfig& config) {
  const bool has_frame = !config.family().empty() && config.family() != "Qwen2";
  auto text = read_text_file(file);
  if (has_frame) text.erase(text.rfind('\n') + 1);
  json out = json::array();
  int number = 0;
  each_line(text, [&](std::string_view line) {
    ++number;
    if (line.empty() || line.starts_with("#version") || (has_frame && number == 1)) return;
    const auto space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      throw DataError(fmt::format("{}:{}: expected two tokens and one space, found \"{}\"", file, number, line), file);
    out.push_back(line);
  });
  return out;
}

IdAndToken entry(const json& vocabulary, const std::string& token, const std::string& file) {
  const auto it = vocabulary.find(token);
  if (it == vocabulary.end() || !it->is_number_integer())
    throw DataError(fmt::format("{}: the vocabulary has no special token \"{}\"", file, token), file);
  return {it->get<std::int32_t>(), token};
}

// Tokens of the vocabulary that have a meaning are found in the text before the model sees it.
json added_tokens(const json& vocabulary, const TokenizerConfig& config, SpecialTokens& special) {
  json out = json::array();
  for (const auto& [name, member] : kSpecialNames) {
    std::string& token = special.*member;
    const auto it = vocabulary.find(token);
    if (it == vocabulary.end()) {
      if (!config.tokenizer_class) token.clear();  // a class adds it
    } else if (it->is_number_integer())
      out.push_back(json_added_token(token, it->get<std::int64_t>(), true));
  }
  return out;
}

// RoBERTa's kind, by its converter.
bool is_roberta(const TokenizerConfig& config) {
  const auto family = config.family();
  return family == "Roberta" || family == "Bart" || family == "LED" || family == "Longformer" || family == "Mvp";
}

}  // namespace

void throw_not_converted(const TokenizerConfig& config, const std::string& file) {
  throw DataError(
      fmt::format("{}: this file is not converted for the tokenizer class {}Tokenizer; open the folder once with "
                  "transformers' AutoTokenizer and save it again, which writes the tokenizer.json that is needed",
                  file, config.family()),
      file);
}

std::string gpt2_to_json(const std::string& vocab_file, const std::string& merges_file, const TokenizerConfig& config,
                         SpecialTokens& special) {
  const auto form = config.family();
  if (!form.empty() && form != "GPT2" && form != "CodeGen" && form != "Qwen2" && form != "Deberta" &&
      !is_roberta(config))
    throw_not_converted(config, vocab_file);
  special = find_tokenizer_class("GPT2Tokenizer", vocab_file)->special;
  if (form.empty())
    override_special(config.special, special);
  else
    special = config.special;
  auto vocabulary = read_vocabulary(vocab_file);
  json root = {{"version", "1.0"}, {"added_tokens", added_tokens(vocabulary, config, special)}};
  const bool prefix = config.add_prefix_space.value_or(false);
  root["pre_tokenizer"] = json_byte_level(prefix, true, true);
  root["post_processor"] = json_byte_level(true, false, true);
  root["decoder"] = json_byte_level(true, true, true);
  if (form == "Qwen2") {
    root["normalizer"] = {{"type", "NFC"}};
    root["pre_tokenizer"] = json_split_then_byte_level(kQwen2Pattern);
  } else if (form == "Deberta") {
    root["post_processor"] =
        json_cls_sep_template(entry(vocabulary, "[CLS]", vocab_file), entry(vocabulary, "[SEP]", vocab_file));
  } else if (is_roberta(config)) {
    const auto sep = entry(vocabulary, special.sep, vocab_file), cls = entry(vocabulary, special.cls, vocab_file);
    root["post_processor"] = {{"type", "RobertaProcessing"},
                              {"sep", json::array({sep.second, sep.first})},
                              {"cls", json::array({cls.second, cls.first})},
                              {"trim_offsets", true},
                              {"add_prefix_space", prefix}};
  } else if (config.add_bos_token.value_or(false)) {
    const auto bos = entry(vocabulary, special.bos, vocab_file);
    root["post_processor"] = json_template(bos, {-1, ""}, 1);
    root["post_processor"]["pair"] = {{{"SpecialToken", {{"id", bos.second}, {"type_id", 0}}}},
                                      {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                      {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}};
  }
  root["model"] = json_plain_bpe();
  root["model"]["merges"] = read_merges(merges_file, config);
  root["model"]["vocab"] = std::move(vocabulary);
  return json_text(root);
}

std::string bert_to_json(const std::string& vocab_file, const TokenizerConfig& config, SpecialTokens& special) {
  const bool bert = config.has_rule(kLowercases) && config.has_rule(kSpacesIdeographs);
  if (config.tokenizer_class && (!bert || config.family() == "Funnel")) throw_not_converted(config, vocab_file);
  special = find_tokenizer_class("BertTokenizer", vocab_file)->special;
  if (config.tokenizer_class)
    special = config.special;
  else
    override_special(config.special, special);
  json vocabulary = json::object();
  std::int64_t id = 0;
  each_line(read_text_file(vocab_file), [&](std::string_view line) { vocabulary[std::string(line)] = id++; });
  const auto cls = entry(vocabulary, special.cls, vocab_file), sep = entry(vocabulary, special.sep, vocab_file);
  const bool lower = config.do_lower_case.value_or(true);
  json root = {{"version", "1.0"}, {"added_tokens", added_tokens(vocabulary, config, special)}};
  root["normalizer"] = {{"type", "BertNormalizer"},
                        {"clean_text", true},
                        {"handle_chinese_chars", config.tokenize_chinese_chars.value_or(true)},
                        {"strip_accents", config.strip_accents.value_or(lower)},
                        {"lowercase", lower}};
  root["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  root["post_processor"] = json_cls_sep_template(cls, sep);
  root["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  root["model"] = {{"type", "WordPiece"},
                   {"unk_token", special.unk},
                   {"continuing_subword_prefix", "##"},
                   {"max_input_chars_per_word", 100},
                   {"vocab", std::move(vocabulary)}};
  return json_text(root);
}

}  // namespace tessera::text
