#pragma once
// A tokenizer from the keys `tokenizer.ggml.*` of a GGUF file. The reader of the file fills the struct in.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace tessera {
struct GgufHeader;
}

namespace tessera::text {

struct GgufVocabulary {
  std::string file;  // named by messages

  std::string model;  // tokenizer.ggml.model: llama, gpt2, bert, t5
  std::string pre;    // tokenizer.ggml.pre: names the expression that cuts words; "" and "default": GPT-2's
  std::vector<std::string> tokens;        // by id
  std::vector<float> scores;              // by id; empty: none
  std::vector<std::int32_t> token_types;  // by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;        // "left right"
  std::string precompiled_charsmap;       // bytes; of t5
  std::optional<bool> remove_extra_whitespaces;  // of t5

  // The *_token_id keys; -1: not given.
  std::int32_t bos_id = -1, eos_id = -1, unk_id = -1, sep_id = -1, pad_id = -1, cls_id = -1, mask_id = -1;
  // add_bos_token, add_eos_token, add_space_prefix; unset: what the model usually does.
  std::optional<bool> add_bos, add_eos, add_sep, add_space_prefix;
  std::optional<bool> lowercase, strip_accents;  // of bert; unset: it does, and as lowercase
  bool takes_space_behind = false;               // Phi-3's added tokens do, which the format has no key for

  std::map<std::string, std::string>
      chat_templates;  // tokenizer.chat_template is "default", tokenizer.chat_template.X is "X"
};

/// What the keys say. DataError when the file holds no tokenizer.
GgufVocabulary gguf_vocabulary(const GgufHeader& header);

/// DataError names the key at fault: an unknown model or pre, ids outside the vocabulary, lists of different lengths, a
/// token that is not UTF-8.
std::shared_ptr<const Tokenizer> make_gguf_tokenizer(const GgufVocabulary& vocabulary);

}  // namespace tessera::text
