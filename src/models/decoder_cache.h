#pragma once
#include <vector>

#include "models/decoder_layers.h"
#include "models/model.h"

namespace tessera::models {

/// Keys and values of every layer. Rows may hold different numbers of tokens: padding is never cached.
class DecoderCache : public Cache {
 public:
  /// reread_beyond: DecoderConfig's.
  explicit DecoderCache(std::int64_t layers, std::int64_t reread_beyond = 0)
      : layers_(static_cast<std::size_t>(layers)), reread_beyond_(reread_beyond) {}

  /// Also takes another number of rows than the last call had (a prompt is read once and continued several times).
  void reorder(const at::Tensor& rows) override;
  bool empty() const override { return lengths_.empty(); }
  bool outgrown_by(std::int64_t tokens) const override;

  /// A fresh cache for so many rows begins with these keys and values (ModelInput::prefix).
  void begin_with(const at::Tensor& prefix, std::int64_t rows);

  struct Step {
    at::Tensor tokens;     // [tokens] int64, places of the new visible tokens in the flattened [R * T] ids
    at::Tensor positions;  // [tokens] int64
    DecoderLayout layout;  // rows, key_rows, cache_index, cache_rows
  };
  /// Makes room for the visible tokens of input_ids [R, T]; attention_mask, position_ids: [R, T] or undefined.
  /// Positions that are not given count on from the row's last.
  Step begin(const at::Tensor& input_ids, const at::Tensor& attention_mask, const at::Tensor& position_ids = {});

  std::vector<KeyValueCache>& layers() { return layers_; }
  std::int64_t capacity() const { return capacity_; }

 private:
  void grow(std::int64_t need);
  std::vector<KeyValueCache> layers_;
  at::Tensor spare_;                                   // for another order of the rows
  std::vector<std::int64_t> lengths_, next_position_;  // of each row
  std::int64_t reread_beyond_ = 0;
  std::int64_t capacity_ = 0;  // rows of a layer's tensors for each row of the batch
};

}  // namespace tessera::models
