#include "nn/ops/attention_token.h"

#include <vector>

#include "nn/kernels/row_kernels.h"
#include "nn/kernels/row_products.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

/// As the kernels take it.
const float* bits_of(const float* x) {
  return x;
}
const std::uint16_t* bits_of(const at::BFloat16* x) {
  return reinterpret_cast<const std::uint16_t*>(x);
}

/// The queries of one token that read the same keys.
template <class T>
class TokenQueries {
 public:
  TokenQueries(const AttentionCall& call, const at::Tensor& out)
      : call_(call), out_(out.mutable_data_ptr<T>()), group_(call.q.size(2)), dim_(call.q.size(3)) {}

  void attend(std::int64_t sequence, std::int64_t head) {
    auto block = block_of(call_.options, sequence, /*begin=*/0, /*count=*/1, /*unit=*/1);
    block.first_head = head;
    block.first_query_head = head * group_;
    take_queries(block);
    scores_.resize(static_cast<std::size_t>(group_ * block.keys));
    kernels::row_products(queries_.data(), group_, row_of(call_.k, block), rows_of(call_.k, block), scores_.data(),
                          block.keys);
    const Scores scores(call_, block);
    for (std::int64_t g = 0; g < group_; ++g) {
      float* row = scores_.data() + g * block.keys;
      const auto how = scores.row(g);
      kernels::scale_row(row, kernels::score_softmax(row, how).scale, how.last);
    }
    const std::int64_t width = call_.v.size(2);
    sums_.resize(static_cast<std::size_t>(group_ * width));
    kernels::weighted_rows(scores_.data(), group_, row_of(call_.v, block), rows_of(call_.v, block), sums_.data());
    const std::int64_t first = (block.query_row * call_.k.size(1) + head) * group_ * width;
    write_floats(sums_.data(), out_ + first, group_ * width);
  }

 private:
  void take_queries(const QueryBlock& b) {
    queries_.resize(static_cast<std::size_t>(group_ * dim_));
    const auto* from = call_.q.const_data_ptr<T>() + b.query_row * call_.q.stride(0) + b.first_head * call_.q.stride(1);
    for (std::int64_t g = 0; g < group_; ++g)
      read_floats(from + g * call_.q.stride(2), queries_.data() + g * dim_, dim_);
  }
  static auto row_of(const at::Tensor& x, const QueryBlock& b) {
    return bits_of(x.const_data_ptr<T>() + b.key_row * x.stride(0) + b.first_head * x.stride(1));
  }
  static kernels::MatrixRows rows_of(const at::Tensor& x, const QueryBlock& b) {
    return {b.keys, x.size(2), x.stride(0)};
  }

  const AttentionCall& call_;
  T* out_;
  std::int64_t group_, dim_;
  std::vector<float> queries_, scores_, sums_;
};

template <class T>
void attend_all(const AttentionCall& call, const at::Tensor& out) {
  const auto& o = call.options;
  const std::int64_t heads = call.k.size(1);
  const std::int64_t work = o.key_rows->longest() * call.k.size(2) * (call.q.size(2) + 1);
  for_rows(o.query_rows->count() * heads, work, [&](std::int64_t first, std::int64_t last) {
    TokenQueries<T> queries(call, out);
    for (std::int64_t i = first; i < last; ++i) {
      const auto s = static_cast<std::size_t>(i / heads);
      if (o.query_rows->length[s] > 0 && o.key_rows->length[s] > 0) queries.attend(i / heads, i % heads);
    }
  });
}

}  // namespace

bool attends_tokens(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionOptions& o) {
  const auto fits = [&](const at::Tensor& x) {
    return x.scalar_type() == q.scalar_type() && is_float_or_bfloat16(x.scalar_type());
  };
  return o.query_rows->longest() <= 1 && o.dropout == 0 && fits(q) && fits(k) && fits(v);
}

void attend_tokens(const AttentionCall& call, const at::Tensor& out) {
  if (call.q.scalar_type() == at::kFloat)
    attend_all<float>(call, out);
  else
    attend_all<at::BFloat16>(call, out);
}

}  // namespace tessera::nn
