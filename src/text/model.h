#pragma once
// Third stage: a piece of text -> ids of the vocabulary.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

struct ModelToken {
  std::int32_t id = 0;
  std::size_t begin = 0, end = 0;  // bytes of the piece
};

class Model {
 public:
  virtual ~Model() = default;
  /// Appends the tokens of one piece (well-formed UTF-8, not empty). Thread-safe.
  virtual void tokenize(std::string_view piece, std::vector<ModelToken>& out) const = 0;
  virtual std::int32_t find(std::string_view token) const = 0;  // -1: none
  virtual std::int64_t size() const = 0;                        // highest id + 1
  virtual std::int64_t count() const { return size(); }         // of tokens; less where ids have gaps
  virtual const std::string& token(std::int32_t id) const = 0;  // id < size()
  virtual std::int32_t unk_id() const = 0;                      // -1: none
  /// An unknown token is called by its own text, not by the name of unk_id(): trimming of offsets looks at that.
  virtual bool keeps_unknown_text() const { return false; }
};

struct UnigramOptions {
  std::vector<std::pair<std::string, double>> pieces;  // token and log probability, by id
  std::int32_t unk_id = -1;
  bool byte_fallback = false;
};

/// The most probable segmentation (Kudo 2018), with unknown characters joined, as Hugging Face's Unigram. `where`
/// begins messages.
std::unique_ptr<const Model> make_unigram(UnigramOptions options, const std::string& where);

}  // namespace tessera::text
