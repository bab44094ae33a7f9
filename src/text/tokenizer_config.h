#pragma once
// What the small files of a tokenizer's folder say: tokenizer_config.json, special_tokens_map.json, added_tokens.json,
// chat_template.jinja, and config.json as far as it tells the tokenizer's class.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/tokenizer.h"
#include "text/tokenizer_classes.h"

namespace tessera::text {

/// A special token as the folder, or else its class, names it.
struct NamedToken {
  std::string content;
  std::optional<AddedToken> flags;            // if they are given
  bool yields = false;                        // to the flags that a list of all added tokens gives it
  std::optional<AddedToken> slow_flags = {};  // in place of none where the tokenizer is made from a SentencePiece model
};

struct TokenizerConfig {
  bool found = false;                               // there is a tokenizer_config.json, or the class is known
  std::string folder;                               // "": none
  const TokenizerClass* tokenizer_class = nullptr;  // null: no file tells it
  SpecialTokens special;
  bool pad_is_given = false;
  std::vector<NamedToken> named;          // the same and more, each once, in the order in which new ones get their ids
  bool has_added_tokens_decoder = false;  // if not, special_tokens_map.json and added_tokens.json count
  std::vector<AddedToken> added_tokens;   // by id
  std::set<std::string> without_flags;    // of these: added_tokens.json alone has them
  std::map<std::string, std::string> chat_templates, template_files;  // by name: the text, and where it stands
  std::optional<int> extra_ids;                                       // T5: how many <extra_id_N>
  std::optional<bool> add_prefix_space, add_bos_token, add_eos_token, legacy, clean_up_tokenization_spaces;
  std::optional<bool> do_lower_case, strip_accents, tokenize_chinese_chars, trim_offsets, split_by_punct;
  AddedTokens::Special special_in_text = AddedTokens::Special::kFound;
  std::optional<Side> truncation_side = {};
  bool gives_type_ids = true;
  bool from_slow = false, prefix_is_null = false;
  bool is_converted = false;  // there is no tokenizer.json, or it is not used

  /// "Llama" for LlamaTokenizer and LlamaTokenizerFast; "": not known.
  std::string_view family() const { return tokenizer_class ? tokenizer_class->family : std::string_view(); }
  bool has_rule(ClassRule rule) const { return tokenizer_class && (tokenizer_class->rules & rule) != 0; }
};

/// Missing files say nothing. DataError names the file and key.
TokenizerConfig read_tokenizer_config(const std::string& folder);

}  // namespace tessera::text
