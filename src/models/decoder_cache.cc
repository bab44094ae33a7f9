#include "models/decoder_cache.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <string>

#include "models/cache_order.h"
#include "tensor/device.h"
#include "tessera/base/error.h"

namespace tessera::models {
namespace {

at::Tensor index_of(const std::vector<std::int64_t>& values, const at::Tensor& like) {
  return tensor::beside(at::tensor(values, at::TensorOptions().dtype(at::kLong)), like);
}

}  // namespace

void DecoderCache::reorder(const at::Tensor& rows) {
  const auto order = tensor::on_host(rows).contiguous();
  const auto* p = order.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> lengths, next_position;
  for (std::int64_t i = 0; i < order.numel(); ++i) {
    lengths.push_back(lengths_.at(p[i]));
    next_position.push_back(next_position_.at(p[i]));
  }
  const CacheOrder moved(order, static_cast<std::int64_t>(lengths_.size()), capacity_,
                         *std::max_element(lengths_.begin(), lengths_.end()));
  for (auto& layer : layers_) {
    moved.apply(layer.keys, spare_);
    moved.apply(layer.values, spare_);
  }
  lengths_ = std::move(lengths);
  next_position_ = std::move(next_position);
}

bool DecoderCache::outgrown_by(std::int64_t tokens) const {
  if (reread_beyond_ == 0 || empty()) return false;
  const auto longest = *std::max_element(next_position_.begin(), next_position_.end());
  return longest <= reread_beyond_ && longest + tokens > reread_beyond_;
}

void DecoderCache::grow(std::int64_t need) {
  if (need <= capacity_) return;
  const std::int64_t grown = std::max<std::int64_t>(32, 2 * need);
  const auto rows = static_cast<std::int64_t>(lengths_.size()), kept = capacity_;
  const auto larger = [&](at::Tensor& t) {
    if (!t.defined()) return;
    auto fresh = at::empty({rows, grown, t.size(1)}, t.options());
    fresh.narrow(1, 0, kept).copy_(t.view({rows, kept, -1}));
    t = fresh.flatten(0, 1);
  };
  for (auto& layer : layers_) {
    larger(layer.keys);
    larger(layer.values);
  }
  capacity_ = grown;
}

void DecoderCache::begin_with(const at::Tensor& prefix, std::int64_t rows) {
  const auto tokens = prefix.size(1);
  lengths_.assign(static_cast<std::size_t>(rows), tokens);
  next_position_ = lengths_;
  grow(tokens);
  const auto put = [&](at::Tensor& store, const at::Tensor& values) {
    store = at::empty({rows * capacity_, values[0].numel()}, values.options());
    store.view({rows, capacity_, -1}).narrow(1, 0, tokens).copy_(values.flatten(1));
  };
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto at = 2 * static_cast<std::int64_t>(i);
    put(layers_[i].keys, prefix.select(0, at));
    put(layers_[i].values, prefix.select(0, at + 1));
  }
}

DecoderCache::Step DecoderCache::begin(const at::Tensor& input_ids, const at::Tensor& attention_mask,
                                       const at::Tensor& position_ids) {
  const std::int64_t rows = input_ids.size(0), fresh = input_ids.size(1);
  if (lengths_.empty()) {
    lengths_.assign(static_cast<std::size_t>(rows), 0);
    next_position_ = lengths_;
  }
  TESSERA_CHECK(static_cast<std::int64_t>(lengths_.size()) == rows, "the number of rows may not change while decoding");
  grow(*std::max_element(lengths_.begin(), lengths_.end()) + fresh);
  at::Tensor mask;
  if (attention_mask.defined()) mask = tensor::on_host(attention_mask).ne(0).contiguous();
  const bool* visible = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  const auto places = position_ids.defined() ? tensor::on_host(position_ids).contiguous() : at::Tensor();
  const auto* given = places.defined() ? places.const_data_ptr<std::int64_t>() : nullptr;
  std::vector<std::int64_t> tokens, positions, index;
  auto queries = std::make_shared<nn::SequenceRows>(), keys = std::make_shared<nn::SequenceRows>();
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto first = static_cast<std::int64_t>(tokens.size());
    for (std::int64_t i = r * fresh; i < (r + 1) * fresh; ++i) {
      if (visible && !visible[i]) continue;
      tokens.push_back(i);
      index.push_back(r * capacity_ + lengths_[r]++);
      positions.push_back(given ? given[i] : next_position_[r]);
      next_position_[r] = positions.back() + 1;
    }
    const auto added = static_cast<std::int64_t>(tokens.size()) - first;
    if (added == 0) throw DataError("row " + std::to_string(r) + " of the prompts has no visible token");
    queries->begin.push_back(first);
    queries->length.push_back(added);
    keys->begin.push_back(r * capacity_);
    keys->length.push_back(lengths_[r]);
  }
  Step step{index_of(tokens, input_ids), index_of(positions, input_ids), {}};
  step.layout.rows = std::move(queries);
  step.layout.key_rows = std::move(keys);
  step.layout.cache_index = index_of(index, input_ids);
  step.layout.cache_rows = rows * capacity_;
  return step;
}

}  // namespace tessera::models
