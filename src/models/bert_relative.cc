#include "models/bert_relative.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/softmax.h>

#include <limits>

#include "nn/ops/dropout_ops.h"
#include "nn/ops/matmul.h"

namespace tessera::models {

at::Tensor relative_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, nn::Embedding& distances,
                              bool with_keys, const nn::AttentionOptions& options) {
  const std::int64_t zero = (distances.weight.size(0) - 1) / 2;  // the row of distance 0
  const auto places = at::arange(options.query_rows->longest(), at::kLong);
  const auto table = distances(places.unsqueeze(1) - places.unsqueeze(0) + zero);  // [L, L, D]
  std::vector<at::Tensor> results;
  for (std::int64_t s = 0; s < options.query_rows->count(); ++s) {
    const std::int64_t begin = options.query_rows->begin[s], n = options.query_rows->length[s];
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, begin, n); };
    const auto q_NHD = part(q.select(2, 0)), k_NHD = part(k);
    const auto rows = table.narrow(0, 0, n).narrow(1, 0, n);
    auto scores = nn::matmul(q_NHD.transpose(0, 1), k_NHD.permute({1, 2, 0}));
    scores = scores + nn::matmul(q_NHD, rows.transpose(1, 2)).transpose(0, 1);
    if (with_keys) scores = scores + nn::matmul(k_NHD, rows.permute({1, 2, 0})).permute({1, 2, 0});
    scores = scores.to(at::kFloat) * options.scale;
    if (options.key_visible.defined()) {
      scores = scores.masked_fill(options.key_visible.narrow(0, begin, n).eq(0), -std::numeric_limits<float>::max());
    }
    const auto p = nn::dropout(at::softmax(scores, -1).to(v.scalar_type()), options.dropout);
    results.push_back(nn::matmul(p, part(v).transpose(0, 1)).transpose(0, 1).reshape({n, -1}));
  }
  return at::cat(results);
}

}  // namespace tessera::models
