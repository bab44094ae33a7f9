#pragma once
// The stages put together: added tokens, normalizer, pre-tokenizer, model, post-processor; and the decoder.
#include <map>
#include <memory>
#include <string>

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_classes.h"

namespace tessera::text {

/// Where a tokenizer came from, for saving it.
struct TokenizerSource {
  std::string file;  // the tokenizer.json that was read; "": `json` holds one that was made from other files
  std::string json;
  std::string folder;  // that holds the configuration files; "": none
};

struct Pipeline {
  NormalizerPtr normalizer;       // null: none
  PreTokenizerPtr pre_tokenizer;  // null: none
  std::shared_ptr<const Model> model;
  PostProcessor post_processor;
  DecoderPtr decoder;  // null: tokens are joined by spaces
  AddedTokens added_tokens;
  SpecialTokens special;
  const TokenizerClass* tokenizer_class = nullptr;  // null: not known
  std::map<std::string, std::string> chat_templates;
  bool clean_up_tokenization_spaces = false, gives_type_ids = true;
  Side truncation_side = Side::kRight;  // of texts that are too long, where nobody says another
  AddedTokens::Special special_in_text = AddedTokens::Special::kFound;
  std::shared_ptr<const TokenizerSource> source;
};

std::shared_ptr<const Tokenizer> make_tokenizer(Pipeline pipeline);

}  // namespace tessera::text
