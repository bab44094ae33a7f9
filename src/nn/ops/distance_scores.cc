#include "nn/ops/distance_scores.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "nn/kernels/row_sums.h"
#include "nn/kernels/score_kernels.h"
#include "nn/ops/gemm.h"

namespace tessera::nn {

// Shapes: H heads, N tokens of the sequence, W rows of the tables that its distances have.

namespace {

/// The products of a [H, A, D] and b [H, B, D], [H, A, B].
at::Tensor products(const at::Tensor& a, const at::Tensor& b) {
  const auto out = at::empty({a.size(0), a.size(1), b.size(1)}, a.options().dtype(at::kFloat));
  for (std::int64_t h = 0; h < a.size(0); ++h) out[h].copy_(gemm(a[h], b[h].t()));
  return out;
}

/// The gradients of a and b += those of products(a, b), g [H, A, B]. gb: float32, or undefined.
void add_gradients(const at::Tensor& g, const at::Tensor& a, const at::Tensor& b, const at::Tensor& ga,
                   const at::Tensor& gb) {
  for (std::int64_t h = 0; h < a.size(0); ++h) {
    const auto of_head = g[h].to(a.scalar_type());
    if (ga.defined()) ga[h].add_(gemm(of_head, b[h]));
    if (gb.defined()) gb[h].add_(gemm(of_head.t(), a[h]));
  }
}

}  // namespace

DistanceScores::DistanceScores(const DistanceTables& tables, const SequenceHeads& x, bool with_gradients,
                               std::int64_t first_head)
    : x_(x), first_head_(first_head), heads_(x.q.size(0)), length_(x.q.size(1)), size_(x.q.size(2)) {
  if (length_ == 0) return;
  const auto* rows = tables.rows_of(length_);
  const auto [least, most] = std::minmax_element(rows, rows + 2 * length_ - 1);
  first_row_ = *least;
  width_ = *most - first_row_ + 1;
  for (std::int64_t d = 1 - length_; d < length_; ++d) {
    const std::int64_t row = rows[d + length_ - 1] - first_row_;
    if (!segments_.empty()) {
      auto& last = segments_.back();
      const std::int64_t count = last.end - last.begin, step = row - (last.row + last.step * (count - 1));
      if ((step == 0 || step == 1) && (count == 1 || step == last.step)) {
        last.end = d + 1, last.step = step;
        continue;
      }
    }
    segments_.push_back({d, d + 1, row, 0});
  }
  const auto begin = [&](Products& side, at::Tensor values) {
    side.values = std::move(values);
    if (with_gradients) side.gradients = at::zeros(side.values.sizes(), side.values.options());
  };
  if (tables.with_query.defined()) {
    with_query_ = part_of(tables.with_query);
    begin(query_, products(x.q, with_query_));
  }
  if (tables.with_key.defined()) {
    with_key_ = part_of(tables.with_key);
    begin(key_, products(with_key_, x.k));
  }
}

/// [R, all heads * D] -> [H, W, D], in place.
at::Tensor DistanceScores::part_of(const at::Tensor& table) const {
  return table.narrow(0, first_row_, width_).view({width_, -1, size_}).narrow(1, first_head_, heads_).transpose(0, 1);
}

template <class Body>
void DistanceScores::for_keys(std::int64_t query, const Body& body) const {
  for (const auto& s : segments_) {  // of distances query - key
    const std::int64_t first = std::max<std::int64_t>(0, query - s.end + 1),
                       end = std::min(length_, query - s.begin + 1);
    if (first < end) body(Keys{first, end - first, s.row + s.step * (query - first - s.begin), s.step == 0});
  }
}

void DistanceScores::add(std::int64_t head, std::int64_t query, float* scores) const {
  if (!any()) return;
  if (query_.values.defined()) {
    const float* from = query_.read(offset(head) + query * width_);
    for_keys(query, [&](const Keys& keys) {
      keys.same_row ? kernels::add_constant(from[keys.row], scores + keys.first, keys.count)
                    : kernels::add_reversed(from + keys.row, scores + keys.first, keys.count);
    });
  }
  if (key_.values.defined()) {
    const float* from = key_.read(offset(head));
    for_keys(query, [&](const Keys& keys) {
      const float* of_key = from + keys.row * length_ + keys.first;
      const std::int64_t next = keys.same_row ? 1 : 1 - length_;
      for (std::int64_t j = 0; j < keys.count; ++j) scores[keys.first + j] += of_key[j * next];
    });
  }
}

void DistanceScores::add_gradient(std::int64_t head, std::int64_t query, const float* g) {
  if (query_.gradients.defined()) {
    float* to = query_.write(offset(head) + query * width_);
    for_keys(query, [&](const Keys& keys) {
      const auto last = keys.count - 1;
      if (keys.same_row)
        to[keys.row] += kernels::sum(g + keys.first, keys.count);
      else
        kernels::add_reversed(g + keys.first + last, to + keys.row - last, keys.count);
    });
  }
  if (key_.gradients.defined()) {
    float* to = key_.write(offset(head));
    for_keys(query, [&](const Keys& keys) {
      float* of_key = to + keys.row * length_ + keys.first;
      const std::int64_t next = keys.same_row ? 1 : 1 - length_;
      for (std::int64_t j = 0; j < keys.count; ++j) of_key[j * next] += g[keys.first + j];
    });
  }
}

void DistanceScores::add_gradients_to(const SequenceHeads& gx, const DistanceTables& gtables) const {
  const auto part = [&](const at::Tensor& t) { return t.defined() ? part_of(t) : t; };
  if (query_.gradients.defined()) add_gradients(query_.gradients, x_.q, with_query_, gx.q, part(gtables.with_query));
  if (key_.gradients.defined()) add_gradients(key_.gradients, with_key_, x_.k, part(gtables.with_key), gx.k);
}

}  // namespace tessera::nn
