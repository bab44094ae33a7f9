#pragma once
// Other tokenizer files -> the text of the tokenizer.json that transformers makes of them.
#include <string>

#include "text/tokenizer_config.h"

namespace tessera::text {

/// spiece.model, tokenizer.model. Unigram: the form that Hugging Face publishes for T5; T5's layout (pad 0, eos 1, unk
/// 2) gets 100 <extra_id_N> behind the pieces, N falling, unless the configuration says another number. BPE: Llama 2's
/// form, merges made from the scores. `special` receives the special
/// tokens: the configuration's, else the model's own.
std::string sentencepiece_to_json(const std::string& file, const TokenizerConfig& config, SpecialTokens& special);

/// vocab.json and merges.txt: GPT-2's form; RoBERTa's and Qwen2's by the configuration's class or model type.
std::string gpt2_to_json(const std::string& vocab_file, const std::string& merges_file, const TokenizerConfig& config,
                         SpecialTokens& special);

/// vocab.txt: BERT's form.
std::string bert_to_json(const std::string& vocab_file, const TokenizerConfig& config, SpecialTokens& special);

}  // namespace tessera::text
