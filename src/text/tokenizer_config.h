#pragma once
// What the small files of a tokenizer's folder say: tokenizer_config.json, special_tokens_map.json,
// chat_template.jinja.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/tokenizer.h"

namespace tessera::text {

struct TokenizerConfig {
  bool found = false;           // there is a tokenizer_config.json
  std::string folder;           // "": none
  std::string tokenizer_class;  // "LlamaTokenizerFast"; "": not given
  std::string model_type;       // of config.json; "": not given
  SpecialTokens special;
  std::vector<AddedToken> added_tokens;  // of added_tokens_decoder, by id
  std::map<std::string, std::string> chat_templates;
  std::optional<int> extra_ids;  // T5: how many <extra_id_N>
  std::optional<bool> add_prefix_space, add_bos_token, add_eos_token, legacy, clean_up_tokenization_spaces;
  std::optional<bool> do_lower_case, strip_accents, tokenize_chinese_chars;

  /// "Llama" for LlamaTokenizer and LlamaTokenizerFast.
  std::string family() const;
};

/// Missing files say nothing. DataError names the file and key.
TokenizerConfig read_tokenizer_config(const std::string& folder);

}  // namespace tessera::text
