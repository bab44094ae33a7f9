#pragma once
// The tokenizer classes of transformers 4.57.3 that open here, and what each adds to the files of a folder.
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace tessera::text {

enum ClassRule : unsigned {
  kLowercases = 1,          // BertNormalizer from do_lower_case and strip_accents
  kSpacesIdeographs = 2,    // and tokenize_chinese_chars
  kTrimsOffsets = 4,        // offsets by add_prefix_space and trim_offsets
  kBeginsRows = 8,          // the post-processor is made anew: bos unless add_bos_token is false, eos if add_eos_token
  kMayBeginRows = 16,       // the same, bos only if add_bos_token is true
  kRebuilds = 32,           // made anew from the SentencePiece model when add_prefix_space is given
  kPrefixesNested = 64,     // add_prefix_space reaches a ByteLevel within a Sequence
  kMaskTakesSpace = 128,    // the class's own mask token takes the white space before it
  kMaskIsNormalized = 256,  // and is looked for in the normalized text
  kExtraIds = 512,          // extra_ids many <extra_id_N> are special tokens
  kOwnAdditional = 2048,    // the class's additional tokens join those of the configuration
  kFlagsNames = 4096,       // tokens that are named as texts get flags: special, and none else
  kOwnPrefix = 1024,        // without add_prefix_space in the configuration the file's setting stays
  kOwnPad = 8192,           // the pad token of tokenizer.json's padding does not count
  kGivesTypeIds = 16384,    // model_input_names has token_type_ids
};

struct TokenizerClass {
  std::string_view family;  // "Llama" for LlamaTokenizer and LlamaTokenizerFast
  unsigned rules;
  const SpecialTokens& special;  // when nobody says otherwise
};

/// By the class that tokenizer_config.json or config.json names. Null: "" was given. DataError when transformers has no
/// such class, or it does what cannot be followed here; `file` begins the message.
const TokenizerClass* find_tokenizer_class(const std::string& name, const std::string& file);

/// The class that AutoTokenizer takes for a model type when no file names one: "Llama" for "mistral". "": none.
std::string_view family_of_model_type(std::string_view model_type);

/// "Llama" for "LlamaTokenizerFast".
std::string tokenizer_family(std::string_view class_name);

/// bos, eos, unk, sep, pad, cls, mask, additional; those that are given, each once.
std::vector<std::string> special_list(const SpecialTokens& special);

/// What is given in `with` wins.
void override_special(const SpecialTokens& with, SpecialTokens& special);

}  // namespace tessera::text
