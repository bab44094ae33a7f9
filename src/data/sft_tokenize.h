#pragma once
// One row of a data file -> token ids and labels.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_renderer.h"
#include "data/chat_rows.h"
#include "data/row_source.h"
#include "data/sft_dataset.h"
#include "data/sft_samples.h"

namespace tessera::data {

enum class RowKind {
  kTokens,            // input_ids: a row that has been tokenised
  kMessages,          // messages or conversations: a list of {role, content}, or of {from, value} (ShareGPT)
  kPromptCompletion,  // prompt and completion: texts, or lists of messages
  kInstruction,       // instruction, optional input, output (Alpaca)
  kText,              // a text column
};
const char* name_of(RowKind kind);

/// DataError lists the columns when none fits.
RowKind kind_of_row(const chat::Dict& row, const std::string& text_field, const std::string& where);

/// Thread-safe.
class SftTokenizer {
 public:
  /// ConfigError for options that do not go together; DataError for a template that cannot be parsed.
  SftTokenizer(const SftDataOptions& options, std::shared_ptr<const text::Tokenizer> tokenizer, RowKind kind);

  /// All tokens of the row, one document, not cut. DataError names file, row and key.
  SftRow tokenize(const SourceRow& row) const;
  /// The row as a question and its answer (first_samples).
  SftSample split(const SourceRow& row) const;

 private:
  struct Tokens {
    std::vector<std::int32_t> ids;
    std::vector<bool> assistant;  // empty unless assistant_only_loss
  };
  struct Conversation;

  Tokens render(const Conversation& chat, const SourceRow& row, bool with_mask,
                std::optional<bool> add_generation_prompt = {}) const;
  Tokens encode(const std::string& text) const;
  std::string with_eos(std::string text) const;
  SftRow read_tokens(const chat::Dict& object, const SourceRow& row) const;
  SftRow tokenize_messages(const chat::Dict& object, const SourceRow& row) const;
  SftRow tokenize_pair(const chat::Value& prompt, const chat::Value& completion, const chat::Dict& object,
                       const SourceRow& row) const;
  SftRow tokenize_instruction(const chat::Dict& object, const SourceRow& row) const;
  SftRow finish(Tokens tokens, std::size_t prompt_size, const SourceRow& row) const;

  SftDataOptions options_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  RowKind kind_;
  RoleNames roles_;
  std::string eos_;
  ChatRenderer renderer_;
};

}  // namespace tessera::data
