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

constexpr std::int64_t kTileKeys = 16, kTileQueries = 32;  // of a tile, at most

/// Some queries and keys of a block.
struct Tile {
  std::int64_t query, queries, key, keys;
};

template <class Body>
void for_tiles(std::int64_t queries, std::int64_t keys, const Body& body) {
  for (std::int64_t q = 0; q < queries; q += kTileQueries)
    for (std::int64_t k = 0; k < keys; k += kTileKeys)
      body(Tile{q, std::min(kTileQueries, queries - q), k, std::min(kTileKeys, keys - k)});
}

}  // namespace

DistanceScores::DistanceScores(const DistanceTables& tables, const SequenceHeads& x, bool with_gradients,
                               std::int64_t first_head)
    : x_(x), first_head_(first_head), heads_(x.q.size(0)), length_(x.q.size(1)), size_(x.q.size(2)) {
  if (length_ == 0) return;
  const auto* rows = tables.rows_of(length_);
  const auto distances = 2 * length_ - 1;
  const auto [least, most] = std::minmax_element(rows, rows + distances);
  first_row_ = *least;
  width_ = *most - first_row_ + 1;
  for (auto i = distances - 1; i >= 0; --i) rows_.push_back(static_cast<std::int32_t>(rows[i] - first_row_));
  for (std::int64_t begin = 0, end = 1; end <= distances; ++end) {
    if (end < distances && rows[end] == rows[end - 1] + 1) continue;
    if (end - begin > near_end_ - near_begin_) near_begin_ = begin - length_ + 1, near_end_ = end - length_ + 1;
    begin = end;
  }
  const auto begin = [&](Products& side, at::Tensor values) {
    side.values = std::move(values);
    side.read = side.values.const_data_ptr<float>();
    if (!with_gradients) return;
    side.gradients = at::zeros(side.values.sizes(), side.values.options());
    side.write = side.gradients.mutable_data_ptr<float>();
  };
  if (tables.with_query.defined()) {
    with_query_ = part_of(tables.with_query);
    begin(query_, products(x.q, with_query_));
  }
  if (tables.with_key.defined()) {
    with_key_ = part_of(tables.with_key);
    begin(key_, products(x.k, with_key_));
  }
}

/// [R, all heads * D] -> [H, W, D], in place.
at::Tensor DistanceScores::part_of(const at::Tensor& table) const {
  return table.narrow(0, first_row_, width_).view({width_, -1, size_}).narrow(1, first_head_, heads_).transpose(0, 1);
}

void DistanceScores::add(std::int64_t head, std::int64_t query, std::int64_t count, float* scores,
                         std::int64_t stride) const {
  if (!any()) return;
  for (std::int64_t i = 0; i < count && query_.read; ++i) {
    const float* from = query_.read + offset(head, query + i);
    const auto* rows = rows_of_query(query + i);
    float* to = scores + i * stride;
    const auto [near, end] = near_keys(query + i);
    kernels::add_gathered(from, rows, to, near);
    if (near < end) kernels::add_reversed(from + rows[near], to + near, end - near);
    kernels::add_gathered(from, rows + end, to + end, length_ - end);
  }
  if (!key_.read) return;
  for_tiles(count, length_, [&](const Tile& tile) {
    float gathered[kTileKeys][kTileQueries];
    const float* columns[kTileKeys];
    for (std::int64_t k = 0; k < tile.keys; ++k) {
      const auto key = tile.key + k, first = query + tile.query;
      const float* from = key_.read + offset(head, key);
      const auto* row = rows_of_query(first) + key;
      columns[k] = from + *row;
      if (follow(first, tile.queries, key)) continue;
      columns[k] = gathered[k];
      for (std::int64_t i = 0; i < tile.queries; ++i) gathered[k][i] = from[*(row - i)];
    }
    kernels::add_columns(columns, tile.keys, tile.queries, scores + tile.query * stride + tile.key, stride);
  });
}

void DistanceScores::add_gradient(std::int64_t head, std::int64_t query, std::int64_t count, const float* g,
                                  std::int64_t stride) {
  if (!any()) return;
  for (std::int64_t i = 0; i < count && query_.write; ++i) {
    float* to = query_.write + offset(head, query + i);
    const auto* rows = rows_of_query(query + i);
    const float* from = g + i * stride;
    const auto [near, end] = near_keys(query + i);
    for (std::int64_t k = 0; k < near; ++k) to[rows[k]] += from[k];
    if (near < end) kernels::add_reversed(from + end - 1, to + rows[end - 1], end - near);
    for (std::int64_t k = end; k < length_; ++k) to[rows[k]] += from[k];
  }
  if (!key_.write) return;
  for_tiles(count, length_, [&](const Tile& tile) {
    float gathered[kTileKeys][kTileQueries];
    float* columns[kTileKeys];
    const auto first = query + tile.query;
    const auto of_key = [&](std::int64_t k) { return key_.write + offset(head, tile.key + k); };
    for (std::int64_t k = 0; k < tile.keys; ++k) {
      columns[k] = of_key(k) + rows_of_query(first)[tile.key + k];
      if (follow(first, tile.queries, tile.key + k)) continue;
      columns[k] = gathered[k];
      std::fill_n(gathered[k], tile.queries, 0.0f);
    }
    kernels::add_to_columns(g + tile.query * stride + tile.key, stride, tile.queries, columns, tile.keys);
    for (std::int64_t k = 0; k < tile.keys; ++k) {
      if (columns[k] != gathered[k]) continue;
      float* to = of_key(k);
      const auto* row = rows_of_query(first) + tile.key + k;
      for (std::int64_t i = 0; i < tile.queries; ++i) to[*(row - i)] += gathered[k][i];
    }
  });
}

void DistanceScores::add_gradients_to(const SequenceHeads& gx, const DistanceTables& gtables) const {
  const auto part = [&](const at::Tensor& t) { return t.defined() ? part_of(t) : t; };
  if (query_.write) add_gradients(query_.gradients, x_.q, with_query_, gx.q, part(gtables.with_query));
  if (key_.write) add_gradients(key_.gradients, x_.k, with_key_, gx.k, part(gtables.with_key));
}

}  // namespace tessera::nn
