#include "models/prefix_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <utility>
#include <vector>

namespace tessera::models {

at::Tensor PrefixRows::of_layer(const at::Tensor& prefix, std::size_t layer) {
  return prefix.defined() ? prefix.narrow(0, 2 * static_cast<std::int64_t>(layer), 2) : prefix;
}

at::Tensor PrefixRows::visible(const at::Tensor& own) const {
  return own.defined() ? join(at::ones({tokens}, own.options()), own) : own;
}

at::Tensor PrefixRows::join(const at::Tensor& of_prefix, const at::Tensor& own) const {
  return at::cat({of_prefix.to(own.scalar_type()), own}).index_select(0, index);
}

PrefixRows behind_prefix(const nn::SequenceRows& own, std::int64_t tokens) {
  auto rows = std::make_shared<nn::SequenceRows>();
  std::vector<std::int64_t> index;
  for (std::int64_t s = 0; s < own.count(); ++s) {
    rows->begin.push_back(static_cast<std::int64_t>(index.size()));
    rows->length.push_back(tokens + own.length[s]);
    for (std::int64_t i = 0; i < tokens; ++i) index.push_back(i);
    for (std::int64_t i = 0; i < own.length[s]; ++i) index.push_back(tokens + own.begin[s] + i);
  }
  return {std::move(rows), at::tensor(index, at::TensorOptions().dtype(at::kLong)), tokens};
}

}  // namespace tessera::models
