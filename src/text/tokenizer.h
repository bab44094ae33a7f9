#pragma once
// Text to token ids and back. Thread-safe after construction; changes make a new tokenizer.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<std::pair<std::int32_t, std::int32_t>>
      offsets;                         // [begin, end) in code points of the input; (0,0) for added ones
  std::vector<std::int32_t> type_ids;  // which of two texts a token belongs to, as the post-processor says
};

enum class Side { kRight, kLeft };
enum class Truncation { kLongestFirst, kOnlyFirst, kOnlySecond };

struct EncodeOptions {
  bool add_special_tokens = true;  // what the post-processor adds (T5: </s> at the end)
  std::int64_t max_length = 0;     // at most so many tokens, the special ones included; 0: no limit
  Truncation truncation = Truncation::kLongestFirst;
  std::optional<Side> truncation_side = {};  // unset: the tokenizer's own
};

struct DecodeOptions {
  bool skip_special_tokens = false;
  std::optional<bool> clean_up_tokenization_spaces;  // unset: what the tokenizer's configuration says
};

/// The tokens that have a meaning for the program. Empty: none.
struct SpecialTokens {
  std::string bos = {}, eos = {}, unk = {}, sep = {}, pad = {}, cls = {}, mask = {};
  std::vector<std::string> additional = {};
  std::map<std::string, std::string> extra = {};  // a model's own, by name: "image_token"

  bool operator==(const SpecialTokens&) const = default;
};

class Tokenizer;
struct AddedToken;

struct TokenizerChanges {
  SpecialTokens special;                     // what is empty stays; a token that is new gets the next free id
  std::optional<std::string> chat_template;  // in place of all templates
  /// Whose added tokens are added where there are none of their names: behind all others, in the order of their ids.
  std::shared_ptr<const Tokenizer> added_tokens_of = nullptr;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Malformed UTF-8 becomes U+FFFD.
  virtual Encoding encode(std::string_view text, const EncodeOptions& options) const = 0;
  Encoding encode(std::string_view text, bool add_special_tokens = true) const {
    EncodeOptions options;
    options.add_special_tokens = add_special_tokens;
    return encode(text, options);
  }
  /// Two texts as one row. DataError when the text that `truncation` names is too short to be cut.
  virtual Encoding encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options) const = 0;

  /// Without clean-up of spaces. Ids that no token has are left out.
  virtual std::string decode(const std::vector<std::int32_t>& ids, bool skip_special_tokens = false) const = 0;
  /// As transformers' decode(): English punctuation is closed up where the options or the configuration say so.
  std::string decode(const std::vector<std::int32_t>& ids, const DecodeOptions& options) const;

  virtual std::int64_t vocab_size() const = 0;                         // ids are < this, added tokens included
  virtual std::int32_t token_to_id(std::string_view token) const = 0;  // -1: none
  virtual std::string id_to_token(std::int32_t id) const = 0;
  /// Left out by skip_special_tokens.
  virtual bool is_special(std::int32_t id) const = 0;

  virtual const SpecialTokens& special_tokens() const = 0;
  virtual const std::vector<AddedToken>& added_tokens() const = 0;     // text/added_tokens.h
  std::int32_t bos_id() const { return id_of(special_tokens().bos); }  // -1: none; so are the others
  std::int32_t eos_id() const { return id_of(special_tokens().eos); }
  std::int32_t unk_id() const { return id_of(special_tokens().unk); }
  std::int32_t sep_id() const { return id_of(special_tokens().sep); }
  std::int32_t pad_id() const { return id_of(special_tokens().pad); }
  std::int32_t cls_id() const { return id_of(special_tokens().cls); }
  std::int32_t mask_id() const { return id_of(special_tokens().mask); }

  /// By name; the usual one is "default". From chat_template.jinja, tokenizer_config.json or GGUF.
  virtual const std::map<std::string, std::string>& chat_templates() const = 0;
  std::string chat_template() const {  // "": none
    const auto it = chat_templates().find("default");
    return it == chat_templates().end() ? "" : it->second;
  }
  virtual bool clean_up_tokenization_spaces() const = 0;
  /// Whether a model gets Encoding::type_ids (token_type_ids): model_input_names of tokenizer_config.json, else of the
  /// class.
  virtual bool gives_type_ids() const = 0;

  /// What save() writes into tokenizer.json: vocabulary, merges and stages. Empty where it was put together from
  /// stages.
  virtual std::string definition() const = 0;
  /// This tokenizer with other or more special tokens, or another template.
  virtual std::shared_ptr<const Tokenizer> with(const TokenizerChanges& changes) const = 0;
  /// Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json, which transformers loads as they are,
  /// and copies the other tokenizer files of the folder it was opened from. CheckpointError when it cannot be written.
  virtual void save(const std::string& folder) const = 0;

 private:
  std::int32_t id_of(const std::string& token) const { return token.empty() ? -1 : token_to_id(token); }
};

/// A Hugging Face folder (the first of formats/model_folder.h's tokenizer_forms(); special tokens from
/// tokenizer_config.json and special_tokens_map.json), or one of those files. DataError names the file and the key or
/// byte at fault.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& folder_or_file);

}  // namespace tessera::text
