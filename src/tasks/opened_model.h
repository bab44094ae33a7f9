#pragma once
// A model that answers: with its adapter, its tokenizer and its settings of generation.
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/generation.h"
#include "tasks/assemble.h"
#include "tasks/generate.h"
#include "text/tokenizer.h"

namespace tessera::tasks {

struct OpenedModel {
  std::string tokenizer_folder;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  Assembled loaded;
  models::GenerationConfig settings;
};

/// Collective. What the options name, sharded over the group. ConfigError for an adapter with an adapter.
OpenedModel open_model(const GenerateOptions& options, std::shared_ptr<comm::Communicator> group);

/// Prints a growing text, character by character that is complete.
class TokenStream {
 public:
  TokenStream(std::ostream& out, const text::Tokenizer& tokenizer, bool skip_special)
      : out_(out), tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// tokens: [1].
  void add(const at::Tensor& tokens);
  /// What is left, and the end of the line. Returns the whole text.
  std::string finish();

 private:
  void print(std::string_view text);

  std::ostream& out_;
  const text::Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<std::int32_t> ids_;
  std::size_t printed_ = 0;
};

}  // namespace tessera::tasks
