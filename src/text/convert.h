#pragma once
// Other tokenizer files -> the text of the tokenizer.json that transformers makes of them.
#include <string>

#include "text/tokenizer_config.h"

namespace tessera::text {

/// The class has a converter in transformers, but not here.
[[noreturn]] void throw_not_converted(const TokenizerConfig& config, const std::string& file);

/// spiece.model, tokenizer.model, spm.model as Llama's, CodeLlama's, Gemma's, T5's and DeBERTa-v2's classes convert
/// them. Without a class: BPE in Llama 2's form, Unigram in the form that Hugging Face publishes for T5, whose layout
/// (pad 0, eos 1, unk 2) gets 100 <extra_id_N> behind the pieces, N falling. `special` receives the special tokens: the
/// configuration's, else the model's own.
std::string sentencepiece_to_json(const std::string& file, const TokenizerConfig& config, SpecialTokens& special);

/// tokenizer.model as tiktoken's ranks, one "base64 rank" a line (Llama 3's, as Meta publishes it), as transformers'
/// TikTokenConverter reads it: words are cut as Llama 3 cuts them, additional special tokens follow the ranks.
bool is_tiktoken(const std::string& file);
std::string tiktoken_to_json(const std::string& file, const TokenizerConfig& config, SpecialTokens& special);

/// vocab.json and merges.txt: GPT-2's form; RoBERTa's kind, DeBERTa's and Qwen2's by the class.
std::string gpt2_to_json(const std::string& vocab_file, const std::string& merges_file, const TokenizerConfig& config,
                         SpecialTokens& special);

/// vocab.txt: BERT's form, that of its kind.
std::string bert_to_json(const std::string& vocab_file, const TokenizerConfig& config, SpecialTokens& special);

}  // namespace tessera::text
