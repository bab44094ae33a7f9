#pragma once
// One row of a data file -> token ids of its prompt and completions.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_renderer.h"
#include "data/preference_dataset.h"
#include "data/row_source.h"
#include "text/tokenizer.h"

namespace tessera::data {

/// Thread-safe.
class PreferenceTokenizer {
 public:
  PreferenceTokenizer(const PreferenceDataOptions& options, std::shared_ptr<const text::Tokenizer> tokenizer);

  /// Of pairs for KTO two rows, the desirable one first; else one. DataError names file, row and key.
  std::vector<PreferenceRow> tokenize(const SourceRow& row) const;
  /// Nothing to learn is left of it, or (reward models) it is too long.
  bool drops(const PreferenceRow& row) const;

 private:
  using Ids = std::vector<std::int32_t>;
  /// A row's texts, or its lists of messages.
  struct Pieces {
    chat::Value prompt, chosen, rejected;
    bool has_prompt = false, conversational = false;
    const chat::Dict* object = nullptr;
    const SourceRow* row = nullptr;
  };
  Pieces pair_of(const chat::Dict& object, const SourceRow& row) const;
  Ids ids_of(const chat::Value& value, const Pieces& in, std::optional<bool> add_generation_prompt = {}) const;
  PreferenceRow pair(const Pieces& in) const;
  PreferenceRow whole(const Pieces& in) const;
  PreferenceRow unpaired(const Pieces& in, const chat::Value& completion, bool label) const;
  PreferenceRow own_prompts(const Pieces& in) const;
  Pieces as_texts(const Pieces& in) const;
  struct Answer {
    Ids prompt, completion;
  };
  Answer answer(const std::string& prompt, const std::string& completion, const Pieces& in) const;
  chat::Value with_eos(const chat::Value& value) const;

  PreferenceDataOptions options_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  ChatRenderer renderer_;
  std::string eos_;
};

}  // namespace tessera::data
