#include "nn/ops/tiled_gemm.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/cpu_level.h"
#include "base/gemm_tiles.h"
#include "nn/kernels/float_panels.h"
#include "nn/kernels/row_kernels.h"
#include "nn/ops/onednn_matmul.h"
#include "nn/ops/rows.h"

namespace tessera::nn {
namespace {

std::int64_t panel_width() {
  return kernels::float_panel_columns();
}
std::int64_t count_of_parts(std::int64_t size, std::int64_t part) {
  return (size + part - 1) / part;
}

/// Some rows of a first factor in the order of kernels::panel_product(), a block of kTileDepth columns after the
/// other.
class PackedRows {
 public:
  explicit PackedRows(const at::Tensor& a) : rows_(a.size(0)), inner_(a.size(1)) {
    const auto blocks = count_of_parts(inner_, kTileDepth);
    packed_ = at::empty({rows_ * inner_ + blocks * kernels::kPackedSlack}, a.options().dtype(at::kFloat));
    at::parallel_for(0, blocks, 1, [&](std::int64_t first, std::int64_t last) {
      const at::AutoDispatchBelowADInplaceOrView without_autograd;
      for (std::int64_t begin = first * kTileDepth; begin < std::min(inner_, last * kTileDepth); begin += kTileDepth)
        pack(a, begin, std::min(kTileDepth, inner_ - begin));
    });
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t inner() const { return inner_; }
  /// column: the first of a block.
  const float* from_column(std::int64_t column) const { return packed_.const_data_ptr<float>() + place(column); }

 private:
  std::int64_t place(std::int64_t column) const { return column * rows_ + column / kTileDepth * kernels::kPackedSlack; }
  void pack(const at::Tensor& a, std::int64_t begin, std::int64_t count) {
    const auto block = a.narrow(1, begin, count);
    if (a.scalar_type() == at::kFloat) return pack<float>(block, begin);
    if (a.scalar_type() == at::kBFloat16) return pack<std::uint16_t>(block, begin);
    pack<float>(block.to(at::kFloat), begin);
  }
  template <class T>
  void pack(const at::Tensor& block, std::int64_t begin) {
    auto* to = packed_.mutable_data_ptr<float>() + place(begin);
    const auto depth = block.size(1);
    if (block.stride(0) == 1 && block.stride(1) != 1)
      return kernels::pack_columns(static_cast<const T*>(block.const_data_ptr()), block.stride(1), rows_, depth, to);
    const auto in_rows = block.stride(1) == 1 ? block : block.contiguous();
    kernels::pack_rows(static_cast<const T*>(in_rows.const_data_ptr()), in_rows.stride(0), rows_, depth, to);
  }

  std::int64_t rows_, inner_;
  at::Tensor packed_;
};

/// Of a second factor [K, N]: rows [row, row + depth), columns [column, column + columns).
struct Part {
  std::int64_t row, depth, column, columns;
};

/// Columns [begin, end) of a factor, `step` at a time.
struct Columns {
  std::int64_t begin, end, step;
};

/// The parts of a factor as panels: those of a step's columns, from the first row to the last, then the next step's.
class Panels {
 public:
  Panels(const TiledFactor& b, std::int64_t inner, const Columns& columns, float* scratch)
      : b_(b),
        inner_(inner),
        columns_(columns),
        values_(scratch),
        panels_(scratch + kReadNumel),
        next_(part_at(0, columns.begin)) {}
  /// Floats of the scratch memory, which several may use in turn.
  static std::int64_t scratch_numel(const Columns& columns) { return kReadNumel + kTileDepth * columns.step; }

  /// The next part, panel after panel, each [depth, panel_width()]. Any next() over the same scratch memory ends them.
  const float* next() {
    if (b_.lies_by_columns())
      make_from_columns(next_);
    else
      make_from_rows(next_);
    const auto row = next_.row + kTileDepth;
    next_ = row < inner_ ? part_at(row, next_.column) : part_at(0, next_.column + columns_.step);
    return panels_;
  }
  /// What next() will read.
  kernels::Prefetch ahead() const {
    const auto& p = next_;
    if (p.column >= columns_.end) return {};
    if (b_.lies_by_columns()) return kernels::Prefetch(b_.memory({p.column, p.columns, p.row, p.depth}));
    return kernels::Prefetch(b_.memory({p.row, p.depth, p.column, p.columns}));
  }

 private:
  Part part_at(std::int64_t row, std::int64_t column) const {
    return {row, std::min(kTileDepth, inner_ - row), column, std::min(columns_.step, columns_.end - column)};
  }
  void make_from_rows(const Part& p) {
    const auto most = kReadNumel / p.columns;
    for (std::int64_t k = 0; k < p.depth; k += most) {
      const auto rows = std::min(most, p.depth - k);
      b_.read({p.row + k, rows, p.column, p.columns}, values_, p.columns);
      for (std::int64_t n = 0; n < p.columns; n += panel_width())
        kernels::panel_of_rows(values_ + n, p.columns, rows, std::min(panel_width(), p.columns - n),
                               panels_ + n * p.depth + k * panel_width());
    }
  }
  void make_from_columns(const Part& p) {
    const auto most = kReadNumel / panel_width();
    for (std::int64_t n = 0; n < p.columns; n += panel_width()) {
      const auto columns = std::min(panel_width(), p.columns - n);
      for (std::int64_t k = 0; k < p.depth; k += most) {
        const auto depth = std::min(most, p.depth - k);
        b_.read({p.column + n, columns, p.row + k, depth}, values_, depth);
        kernels::panel_of_columns(values_, depth, depth, columns, panels_ + n * p.depth + k * panel_width());
      }
    }
  }

  const TiledFactor& b_;
  std::int64_t inner_;
  Columns columns_;
  float *values_, *panels_;
  Part next_;
};

/// A tensor [K, N].
class Dense final : public TiledFactor {
 public:
  explicit Dense(const at::Tensor& b) : by_columns_(b.stride(0) == 1 && b.stride(1) != 1) {
    const auto stored = by_columns_ ? b.t() : b;
    stored_ = stored.size(1) < 2 || stored.stride(1) == 1 ? stored : stored.contiguous();
  }
  bool lies_by_columns() const override { return by_columns_; }
  void read(const tensor::MatrixTile& tile, float* out, std::int64_t stride) const override {
    const void* from = memory(tile).at;
    if (stored_.scalar_type() == at::kFloat)
      return copy_rows(static_cast<const float*>(from), tile, out, stride,
                       [](const float* x, float* to, std::int64_t count) { std::copy_n(x, count, to); });
    if (stored_.scalar_type() == at::kBFloat16)
      return copy_rows(static_cast<const std::uint16_t*>(from), tile, out, stride, kernels::widen);
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    at::from_blob(out, {tile.rows, tile.columns}, {stride, 1}, at::kFloat)
        .copy_(stored_.narrow(0, tile.row, tile.rows).narrow(1, tile.column, tile.columns));
  }
  kernels::MemoryRows memory(const tensor::MatrixTile& tile) const override {
    const auto bytes = stored_.element_size(), row_bytes = stored_.stride(0) * bytes;
    const auto* at = static_cast<const char*>(stored_.const_data_ptr());
    return {at + tile.row * row_bytes + tile.column * bytes, tile.rows, tile.columns * bytes, row_bytes};
  }

 private:
  template <class T, class Copy>
  void copy_rows(const T* from, const tensor::MatrixTile& tile, float* out, std::int64_t stride,
                 const Copy& copy) const {
    for (std::int64_t r = 0; r < tile.rows; ++r) copy(from + r * stored_.stride(0), out + r * stride, tile.columns);
  }

  bool by_columns_;
  at::Tensor stored_;
};

/// sums [a's rows, columns] = a times the next columns of b, or += that.
void multiply(const PackedRows& a, Panels& b, std::int64_t columns, const kernels::PanelSums& sums) {
  for (std::int64_t row = 0; row < a.inner(); row += kTileDepth) {
    const auto depth = std::min(kTileDepth, a.inner() - row);
    const auto* panel = b.next();
    auto ahead = b.ahead();
    const auto lines = count_of_parts(ahead.lines(), count_of_parts(columns, panel_width()));
    for (std::int64_t n = 0; n < columns; n += panel_width())
      kernels::panel_product(a.from_column(row), a.rows(), panel + n * depth, depth,
                             {sums.at + n, sums.stride, sums.add || row > 0}, ahead, lines);
  }
}

/// place [.., at most kTileColumns] = alpha * sums, or += that. sums: rows `stride` floats apart, overwritten.
template <class T>
void store_rows(float* sums, std::int64_t stride, const at::Tensor& place, double alpha, bool add) {
  const auto columns = place.size(1);
  std::array<float, kTileColumns> before;
  auto* to = place.mutable_data_ptr<T>();
  for (std::int64_t r = 0; r < place.size(0); ++r, sums += stride, to += place.stride(0)) {
    if (alpha != 1.0) kernels::scale_row(sums, static_cast<float>(alpha), columns);
    if (add) {
      read_floats(to, before.data(), columns);
      for (std::int64_t i = 0; i < columns; ++i) sums[i] += before[static_cast<std::size_t>(i)];
    }
    write_floats(sums, to, columns);
  }
}

void store(const at::Tensor& sums, const at::Tensor& place, double alpha, bool add) {
  if (place.scalar_type() == at::kBFloat16)
    return store_rows<at::BFloat16>(sums.mutable_data_ptr<float>(), sums.stride(0), place, alpha, add);
  if (alpha != 1.0) sums.mul_(alpha);
  if (add) sums.add_(place);
  place.copy_(sums);
}

/// Columns that a thread computes at a time: all threads get equally many of them.
std::int64_t columns_at_a_time(std::int64_t columns) {
  const std::int64_t threads = at::get_num_threads();
  const auto tiles = count_of_parts(count_of_parts(columns, kTileColumns), threads) * threads;
  return count_of_parts(count_of_parts(columns, tiles), panel_width()) * panel_width();
}

/// A number of tokens that seldom comes again. oneDNN makes code for each, in about 0.2 ms.
bool is_rare(std::int64_t tokens) {
  constexpr std::int64_t kFew = 16, kMany = 256, kUsual = 16;  // of few there are few; many take longer than their code
  return tokens > kFew && tokens < kMany && tokens % kUsual != 0;
}

}  // namespace

bool belongs_to_tiles(at::ScalarType dtype, const ProductShape& p) {
  if (dtype == at::kFloat && onednn_multiplies_float32()) return is_rare(p.rows) || is_rare(p.inner);
  if (dtype == at::kFloat) {
    constexpr std::int64_t kFewestColumns = 32, kShortest = 32;
    const std::int64_t fewest_rows = p.contiguous_columns ? 16 : 64;  // these columns are read faster
    return !multiplies_float32() && p.rows >= fewest_rows && p.columns >= kFewestColumns && p.inner >= kShortest &&
           p.inner <= kLongestFloatInner;
  }
  constexpr std::int64_t kRowsOfDotProducts = 4;
  if (p.rows <= kRowsOfDotProducts && p.contiguous_rows && p.contiguous_columns) return false;
  return dtype == at::kHalf || (dtype == at::kBFloat16 && !multiplies_bfloat16());
}

bool belongs_to_tiles(const at::Tensor& a, std::int64_t columns, bool contiguous_columns) {
  return a.is_cpu() &&
         belongs_to_tiles(a.scalar_type(), {a.size(-2), a.size(-1), columns, a.stride(-1) == 1, contiguous_columns});
}

bool belongs_to_tiles(const at::Tensor& a, const at::Tensor& b) {
  return b.is_cpu() && a.scalar_type() == b.scalar_type() && belongs_to_tiles(a, b.size(-1), b.stride(-2) == 1);
}

void gemm_by_tiles(const at::Tensor& out, const at::Tensor& a, const TiledFactor& b, const Addend& addend, double alpha,
                   bool add) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  const std::int64_t inner = a.size(1), columns = out.size(1);
  const bool adds_few = addend.u.defined() && addend.u.size(1) > 0;
  const Dense few(adds_few ? addend.v : at::empty({0, columns}, at::kFloat));
  const auto height = packed_rows(a.size(0), inner), step = columns_at_a_time(columns);
  // What is one pass and needs neither rounding nor a panel's columns behind the last one goes where it belongs at
  // once.
  const bool direct =
      sums_in_place(inner, out.scalar_type() == at::kFloat) && columns % panel_width() == 0 && alpha == 1.0 && !add;
  for (std::int64_t row = 0; row < a.size(0); row += height) {
    const auto rows = std::min(height, a.size(0) - row);
    const PackedRows left(a.narrow(0, row, rows));
    const auto few_rows =
        adds_few ? std::optional<PackedRows>(std::in_place, addend.u.narrow(0, row, rows)) : std::nullopt;
    at::parallel_for(0, count_of_parts(columns, step), 1, [&](std::int64_t first, std::int64_t last) {
      const at::AutoDispatchBelowADInplaceOrView without_autograd_here;
      const Columns range{first * step, std::min(columns, last * step), step};
      const auto scratch = at::empty({Panels::scratch_numel(range)}, at::kFloat);
      Panels panels(b, inner, range, scratch.mutable_data_ptr<float>());
      Panels few_panels(few, adds_few ? addend.u.size(1) : 0, range, scratch.mutable_data_ptr<float>());
      const auto sums = at::empty({direct ? 0 : rows, step}, at::kFloat);
      for (std::int64_t column = range.begin; column < range.end; column += step) {
        const auto count = std::min(step, range.end - column);
        const auto place = out.narrow(0, row, rows).narrow(1, column, count);
        const auto& to = direct ? place : sums;
        const kernels::PanelSums product{to.mutable_data_ptr<float>(), to.stride(0), false};
        inner > 0 ? multiply(left, panels, count, product) : static_cast<void>(to.zero_());
        if (few_rows) multiply(*few_rows, few_panels, count, {product.at, product.stride, true});
        if (!direct) store(sums.narrow(1, 0, count), place, alpha, add);
      }
    });
  }
}

void gemm_by_tiles(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addend& addend, double alpha,
                   bool add) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  if (a.dim() == 2) return gemm_by_tiles(out, a, Dense(b), addend, alpha, add);
  at::parallel_for(0, a.size(0), 1, [&](std::int64_t first, std::int64_t last) {
    const at::AutoDispatchBelowADInplaceOrView without_autograd_here;
    for (auto i = first; i < last; ++i)
      gemm_by_tiles(out.select(0, i), a.select(0, i), Dense(b.select(0, i)), {}, alpha, add);
  });
}

}  // namespace tessera::nn
