#pragma once
// The tokenizer of a fine-tuning job: the model's, with the tokens and the template that its flags ask for.
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace tessera::tasks {

struct TokenizerFlags {
  std::string chat_template_format =
      "none";                        // chatml, zephyr: their template and special tokens; none: the tokenizer's
  std::string chat_template_path;    // a file, or a tokenizer's folder, whose added tokens and eos come along
  std::string eos_token, pad_token;  // empty: the tokenizer's, or the format's
};

struct TrainingTokenizer {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  /// Rows that the model's token tables need: the number of tokens rounded up to a multiple of 8 (of 64 with another
  /// tokenizer's template) when tokens were added; 0: the tables stay as they are.
  std::int64_t min_vocab_size = 0;
  std::string template_place = {};  // of the chat template, for messages: its file, or the name of a built-in one
};

/// As the SFT script: chatml and zephyr bring eos, bos, pad and role tokens; without a padding token eos takes its
/// place. ConfigError when there is neither, or when eos_token or pad_token names no token.
TrainingTokenizer open_training_tokenizer(const TokenizerFlags& options, const std::string& path);

/// `eos`, which pads where no other token does; ConfigError where it is empty. path: of the tokenizer, for the message.
std::string eos_as_padding(const std::string& eos, const std::string& path);
/// DataError where it has more tokens than the model's table has rows.
void require_rows_for(const text::Tokenizer& tokenizer, const std::string& path, std::int64_t rows);

}  // namespace tessera::tasks
