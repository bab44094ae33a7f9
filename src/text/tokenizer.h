#pragma once
// Text to token ids and back. Thread-safe after construction.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<std::pair<std::int32_t, std::int32_t>>
      offsets;  // [begin, end) in code points of the input; (0,0) for added ones
};

enum class Side { kRight, kLeft };
enum class Truncation { kLongestFirst, kOnlyFirst, kOnlySecond };

struct EncodeOptions {
  bool add_special_tokens = true;  // what the post-processor adds (T5: </s> at the end)
  std::int64_t max_length = 0;     // at most so many tokens, the special ones included; 0: no limit
  Truncation truncation = Truncation::kLongestFirst;
  Side truncation_side = Side::kRight;
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
  virtual std::string decode(const std::vector<std::int32_t>& ids, bool skip_special_tokens = false) const = 0;
  virtual std::int64_t vocab_size() const = 0;                         // ids are < this, added tokens included
  virtual std::int32_t token_to_id(std::string_view token) const = 0;  // -1: none
  virtual std::string id_to_token(std::int32_t id) const = 0;
  virtual std::int32_t pad_id() const = 0;  // -1: none
  virtual std::int32_t eos_id() const = 0;
  virtual std::int32_t bos_id() const = 0;
  virtual std::int32_t unk_id() const = 0;
};

/// A Hugging Face folder (tokenizer.json, else spiece.model / tokenizer.model; special tokens from
/// tokenizer_config.json and special_tokens_map.json), or one of those files. DataError names the file and the key or
/// byte at fault.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& folder_or_file);

}  // namespace tessera::text
