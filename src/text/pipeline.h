#pragma once
// The stages put together: added tokens, normalizer, pre-tokenizer, model, post-processor; and the decoder.
#include <memory>
#include <string>

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace tessera::text {

struct SpecialTokens {
  std::string pad, eos, bos, unk;  // empty: none
};

struct Pipeline {
  NormalizerPtr normalizer;       // null: none
  PreTokenizerPtr pre_tokenizer;  // null: none
  std::unique_ptr<const Model> model;
  PostProcessor post_processor;
  DecoderPtr decoder;  // null: tokens are joined by spaces
  AddedTokens added_tokens;
  SpecialTokens special;
};

std::shared_ptr<const Tokenizer> make_tokenizer(Pipeline pipeline);

}  // namespace tessera::text
