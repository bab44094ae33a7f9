#include "nn/ops/distance_scores.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "nn/ops/gemm.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

// Shapes: H heads, N tokens of the sequence, W rows of the tables that its distances have.

/// The part of the tables that a sequence uses.
class Window {
 public:
  Window(const DistanceTables& tables, std::int64_t length, std::int64_t heads) : heads_(heads), length_(length) {
    const auto* row = tables.rows_of(length);
    const auto [least, most] = std::minmax_element(row, row + 2 * length - 1);
    first_ = *least;
    size_ = *most - first_ + 1;
    for (std::int64_t d = 0; d < 2 * length - 1; ++d) places_.push_back(row[d] - first_);
  }
  std::int64_t size() const { return size_; }
  /// Where the distance i - j stands in the window: place(i)[-j].
  const std::int64_t* place(std::int64_t i) const { return places_.data() + length_ - 1 + i; }
  /// [R, H * D] -> [H, W, D], in place.
  at::Tensor of(const at::Tensor& table) const {
    return table.narrow(0, first_, size_).view({size_, heads_, -1}).transpose(0, 1);
  }

 private:
  std::int64_t heads_, length_, first_ = 0, size_ = 0;
  std::vector<std::int64_t> places_;
};

/// Products of all tokens with the window, [H, N, W]; undefined for an undefined table.
at::Tensor products(const at::Tensor& x, const at::Tensor& table, const Window& window) {
  return table.defined() ? gemm(x, window.of(table).transpose(1, 2)) : at::Tensor();
}

template <class T>
const T* data_or_null(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<T>() : nullptr;
}

/// gx += gradient of the products, times the table; the table's, where one is wanted, += their transpose, times x.
void add_gradients(const at::Tensor& g, const at::Tensor& x, const at::Tensor& table, const Window& window,
                   const at::Tensor& gx, const at::Tensor& gtable) {
  gx.add_(gemm(g, window.of(table)));
  if (gtable.defined()) window.of(gtable).add_(gemm(g.transpose(1, 2), x));
}

}  // namespace

void add_distance_scores(const at::Tensor& p, const SequenceHeads& x, const DistanceTables& tables) {
  const std::int64_t heads = p.size(0), n = p.size(1);
  const Window window(tables, n, heads);
  const auto of_query = products(x.q, tables.with_query, window), of_key = products(x.k, tables.with_key, window);
  const std::int64_t w = window.size();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, p.scalar_type(), "distance_scores", [&] {
    const auto *q = data_or_null<scalar_t>(of_query), *k = data_or_null<scalar_t>(of_key);
    auto* scores = p.mutable_data_ptr<scalar_t>();
    for_rows(heads * n, n, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t r = first; r < last; ++r) {
        const auto* place = window.place(r % n);
        scalar_t* row = scores + r * n;
        if (q) {
          for (std::int64_t j = 0; j < n; ++j) row[j] += q[r * w + place[-j]];
        }
        if (k) {
          const scalar_t* of_head = k + r / n * n * w;
          for (std::int64_t j = 0; j < n; ++j) row[j] += of_head[j * w + place[-j]];
        }
      }
    });
  });
}

void add_distance_gradients(const at::Tensor& ds, const SequenceHeads& x, const DistanceTables& tables,
                            const SequenceHeads& gx, const DistanceTables& gtables) {
  const std::int64_t heads = ds.size(0), n = ds.size(1);
  const Window window(tables, n, heads);
  const std::int64_t w = window.size();
  const auto sums = [&](const at::Tensor& table) {
    return table.defined() ? at::zeros({heads, n, w}, ds.options().dtype(at::kFloat)) : at::Tensor();
  };
  const auto of_query = sums(tables.with_query), of_key = sums(tables.with_key);
  auto* q = of_query.defined() ? of_query.mutable_data_ptr<float>() : nullptr;
  auto* k = of_key.defined() ? of_key.mutable_data_ptr<float>() : nullptr;
  for_rows(heads, n * n, [&](std::int64_t first, std::int64_t last) {
    ReadRow gradient(ds, n);
    for (std::int64_t r = first * n; r < last * n; ++r) {
      const auto* place = window.place(r % n);
      const float* row = gradient.at(r * n);
      if (q) {
        for (std::int64_t j = 0; j < n; ++j) q[r * w + place[-j]] += row[j];
      }
      if (k) {
        float* of_head = k + r / n * n * w;
        for (std::int64_t j = 0; j < n; ++j) of_head[j * w + place[-j]] += row[j];
      }
    }
  });
  const auto dtype = ds.scalar_type();
  if (q) add_gradients(of_query.to(dtype), x.q, tables.with_query, window, gx.q, gtables.with_query);
  if (k) add_gradients(of_key.to(dtype), x.k, tables.with_key, window, gx.k, gtables.with_key);
}

}  // namespace tessera::nn
