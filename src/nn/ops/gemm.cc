#include "nn/ops/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <optional>

#include "nn/kernels/bf16_dot.h"
#include "nn/kernels/bf16_few_rows.h"
#include "nn/kernels/bf16_gemm.h"
#include "nn/kernels/bf16_tiles.h"
#include "nn/kernels/row_kernels.h"
#include "nn/kernels/row_products.h"
#include "nn/ops/onednn_matmul.h"
#include "nn/ops/packed_panels.h"
#include "nn/ops/packed_rows.h"
#include "nn/ops/rows.h"
#include "nn/ops/tiled_gemm.h"
#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kMostTurnedRows = 256;  // beyond, packing the first factor costs as much as the second
constexpr std::int64_t kColumnsAThread = 64, kRowsAThread = 96, kFewRowsColumns = 16;

std::optional<kernels::Bfloat16Matrix> bfloat16_matrix(const at::Tensor& t) {
  const bool fits = t.is_cpu() && t.scalar_type() == at::kBFloat16 && t.dim() == 2 && t.numel() > 0 &&
                    (t.stride(0) == 1 || t.stride(1) == 1);
  if (!fits) return std::nullopt;
  return kernels::Bfloat16Matrix{static_cast<const std::uint16_t*>(t.const_data_ptr()), t.stride(0), t.stride(1)};
}

/// Adds u v, where u is defined; nothing where a library should do it.
std::optional<kernels::Bf16Gemm> with_addend(kernels::Bf16Gemm product, const at::Tensor& u, const at::Tensor& v) {
  if (!u.defined()) return product;
  const auto few = bfloat16_matrix(u), wide = bfloat16_matrix(v);
  if (!few || !wide || few->column != 1 || u.size(1) % 2 != 0) return std::nullopt;
  product.u = *few, product.v = *wide, product.rank = u.size(1);
  return product;
}

/// A product too small for AMX's tiles, for which the first factor is packed, too, is a library's.
bool panels_pay(std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kFewColumns = 32;
  return kernels::has_bf16_gemm() &&
         (!kernels::has_bf16_tiles() || (rows >= kernels::kFewestTileRows && columns > kFewColumns));
}

/// (b^T a^T)^T: a second factor that is a transpose, like a layer's weight, is read as it stands, and the few rows of
/// the first one are packed instead. The sums are the same. Nothing where that can't be.
std::optional<kernels::Bf16Gemm> turned(const kernels::Bf16Gemm& p) {
  const auto transposed = [](const kernels::Bfloat16Matrix& m) {
    return kernels::Bfloat16Matrix{m.at, m.column, m.row};
  };
  const kernels::Bf16Gemm other{transposed(p.b), transposed(p.a), transposed(p.v), transposed(p.u),
                                p.columns,       p.rows,          p.inner,         p.rank};
  const bool stands = p.factor == nullptr && other.a.column == 1 && (p.rank == 0 || other.u.column == 1);
  return stands && p.rows <= kMostTurnedRows && p.inner % 2 == 0 && kernels::can_turn(other) ? std::optional(other)
                                                                                             : std::nullopt;
}

/// a b, or a b + u v where u is defined; nothing where a library should do it.
std::optional<kernels::Bf16Gemm> panel_product_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& u = {},
                                                  const at::Tensor& v = {}) {
  if (!panels_pay(a.size(0), b.size(-1))) return std::nullopt;
  const auto left = bfloat16_matrix(a), right = bfloat16_matrix(b);
  if (!left || !right) return std::nullopt;
  const bool pairs_in_rows = left->column == 1 || right->column != 1;
  if (pairs_in_rows && a.size(1) % 2 != 0) return std::nullopt;
  return with_addend({*left, *right, {}, {}, a.size(0), b.size(1), a.size(1), 0}, u, v);
}

/// The same with a packed second factor.
std::optional<kernels::Bf16Gemm> panel_product_of(const at::Tensor& a, const PackedPanels& b, const at::Tensor& u = {},
                                                  const at::Tensor& v = {}) {
  if (!panels_pay(kernels::kFewestTileRows, b.columns()) || !b.on_cpu()) return std::nullopt;
  const auto left = bfloat16_matrix(a);
  if (!left || a.size(1) % 2 != 0) return std::nullopt;
  return with_addend({*left, {}, {}, {}, a.size(0), b.columns(), a.size(1), 0, &b, 0}, u, v);
}

/// Each thread takes some columns, or some rows.
void run(const kernels::Bf16Gemm& given, const at::Tensor& out, double alpha, bool add) {
  TESSERA_CHECK(out.scalar_type() == at::kBFloat16 && out.stride(-1) == 1, "a product goes to dense rows of its dtype");
  const bool is_few = kernels::has_few_rows(given);
  const auto other = add || is_few ? std::nullopt : turned(given);
  const auto& product = other ? *other : given;
  const std::int64_t row = other ? 1 : out.stride(0), column = other ? out.stride(0) : 1;  // of `out`
  const bool by_columns = is_few || product.columns / kColumnsAThread >=
                                        std::min<std::int64_t>(at::get_num_threads(), product.rows / kRowsAThread);
  const std::int64_t unit = is_few ? kFewRowsColumns : by_columns ? kColumnsAThread : kRowsAThread;
  const std::int64_t size = by_columns ? product.columns : product.rows;
  at::parallel_for(0, (size + unit - 1) / unit, 1, [&](std::int64_t begin, std::int64_t end) {
    auto part = product;
    const std::int64_t first = begin * unit, count = std::min(size, end * unit) - first;
    if (by_columns) {
      part.columns = count;
      if (part.factor == nullptr) part.b.at += first * part.b.column;
      part.first_column += first;
      if (part.rank > 0) part.v.at += first * part.v.column;
    } else {
      part.rows = count;
      part.a.at += first * part.a.row;
      if (part.rank > 0) part.u.at += first * part.u.row;
    }
    auto* to = static_cast<std::uint16_t*>(out.mutable_data_ptr()) + first * (by_columns ? column : row);
    const kernels::Bf16GemmOutput results{to, out.stride(0), add, static_cast<float>(alpha), other.has_value()};
    if (!other && kernels::has_few_rows(part)) return kernels::few_rows_gemm(part, results);
    const auto scratch = at::empty({static_cast<std::int64_t>(kernels::bf16_gemm_scratch_bytes(part))}, at::kByte);
    kernels::bf16_gemm(part, results, scratch.mutable_data_ptr());
  });
}

at::Tensor run(const kernels::Bf16Gemm& product, const at::TensorOptions& options) {
  auto out = at::empty({product.rows, product.columns}, options);
  run(product, out, 1.0, false);
  return out;
}

/// A few rows by those of a weight, which a library would read several times; of float32, or of float16, of which a
/// library's product of one row is faster.
bool has_few_float_rows(const at::Tensor& a, const at::Tensor& b) {
  const auto dtype = a.scalar_type();
  const auto fits = [&](const at::Tensor& t) {
    return t.is_cpu() && t.scalar_type() == dtype && t.dim() == 2 && t.numel() > 0;
  };
  const bool takes_dtype = dtype == at::kFloat || (dtype == at::kHalf && a.size(0) > 1);
  return takes_dtype && fits(a) && fits(b) && a.size(0) <= kMostFewRows && b.stride(0) == 1;
}

template <class T>
at::Tensor few_float_rows(const at::Tensor& x, const at::Tensor& b) {
  const std::int64_t columns = b.size(1), inner = b.size(0);
  const auto* matrix = static_cast<const T*>(b.const_data_ptr());
  auto out = at::empty({x.size(0), columns}, x.options());
  for_rows(columns, inner, [&](std::int64_t first, std::int64_t last) {
    kernels::row_products(x.const_data_ptr<float>(), x.size(0), matrix + first * b.stride(1),
                          {last - first, inner, b.stride(1)}, out.mutable_data_ptr<float>() + first, columns);
  });
  return out;
}

at::Tensor few_float_rows(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) return few_float_rows<float>(a.contiguous(), b);
  return few_float_rows<kernels::Float16>(a.to(at::kFloat).contiguous(), b).to(at::kHalf);
}

/// out = beta * out + alpha * a b, where out is wider than the factors.
void wide_gemm(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double beta, double alpha) {
  TESSERA_CHECK(has_wide_gemm(a) && out.scalar_type() == at::kFloat, "a product of 16 bits is summed up in float32");
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  at::addmm_out(const_cast<at::Tensor&>(out), out, a, b, at::kFloat, beta, alpha);
}

/// out += u v, of perhaps another dtype.
at::Tensor plus_product(at::Tensor out, const at::Tensor& u, const at::Tensor& v) {
  if (out.scalar_type() == u.scalar_type()) {
    gemm_add(out, u, v);
  } else {
    out.add_(gemm(u, v));
  }
  return out;
}

/// The values of a packed matrix, rounded to the dtype of the computation.
class Unpacked final : public TiledFactor {
 public:
  Unpacked(const PackedFactor& b, at::ScalarType dtype) : b_(b), dtype_(dtype) {}
  bool lies_by_columns() const override { return b_.transposed; }
  void read(const tensor::MatrixTile& tile, float* out, std::int64_t stride) const override {
    b_.matrix.codec->decode(b_.matrix, tile, out, stride);
    if (dtype_ == at::kFloat) return;
    const auto round = dtype_ == at::kBFloat16 ? kernels::round_to_bfloat16 : kernels::round_to_float16;
    for (std::int64_t r = 0; r < tile.rows; ++r, out += stride) round(out, tile.columns);
  }
  kernels::MemoryRows memory(const tensor::MatrixTile& tile) const override { return memory_of(b_.matrix, tile); }

 private:
  const PackedFactor& b_;
  at::ScalarType dtype_;
};

}  // namespace

// With AMX, oneDNN 3.12 reads up to 31 elements behind the end of a row whose length is no multiple of 32,
// and multiplies them by zeros. Behind a part of a row there may be anything, infinities too.
at::Tensor whole_rows(const at::Tensor& a) {
  const bool exact = !a.is_cpu() || a.scalar_type() == at::kFloat || a.dim() < 2 || a.size(-1) % 32 == 0;
  return exact || a.stride(-1) != 1 || a.stride(-2) == a.size(-1) ? a : a.contiguous();
}

bool has_wide_gemm(const at::Tensor& a) {
  return a.is_cuda() && (a.scalar_type() == at::kBFloat16 || a.scalar_type() == at::kHalf);
}

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b) {
  if (const auto panels = panel_product_of(a, b)) return run(*panels, a.options());
  if (has_few_float_rows(a, b)) return few_float_rows(a, b);
  if (!onednn_matmul_for(a, b) && !belongs_to_tiles(a, b))
    return a.dim() == 3 ? at::bmm(whole_rows(a), b) : at::mm(whole_rows(a), b);
  auto sizes = a.sizes().vec();
  sizes.back() = b.sizes().back();
  auto out = at::empty(sizes, a.options());
  gemm_to(out, a, b);
  return out;
}

void gemm_to(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha) {
  if (out.scalar_type() != a.scalar_type()) return wide_gemm(out, a, b, 0, alpha);
  if (const auto panels = panel_product_of(a, b)) return run(*panels, out, alpha, false);
  if (belongs_to_tiles(a, b)) return gemm_by_tiles(out, a, b, {}, alpha, false);
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  if (const auto onednn = onednn_matmul_for(a, b)) {
    onednn(a, b, out, 0.0f, static_cast<float>(alpha));
  } else if (a.dim() == 3) {
    at::baddbmm_out(const_cast<at::Tensor&>(out), out, whole_rows(a), b, 0, alpha);
  } else {
    at::addmm_out(const_cast<at::Tensor&>(out), out, whole_rows(a), b, 0, alpha);
  }
}

void gemm_add(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, double alpha) {
  if (out.scalar_type() != a.scalar_type()) return wide_gemm(out, a, b, 1, alpha);
  if (const auto panels = panel_product_of(a, b)) return run(*panels, out, alpha, true);
  if (belongs_to_tiles(a, b)) return gemm_by_tiles(out, a, b, {}, alpha, true);
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  if (const auto onednn = onednn_matmul_for(a, b)) {
    onednn(a, b, out, 1.0f, static_cast<float>(alpha));
  } else if (a.dim() == 3) {
    out.baddbmm_(whole_rows(a), b, 1, alpha);
  } else {
    out.addmm_(whole_rows(a), b, 1, alpha);
  }
}

at::Tensor gemm_sum(const at::Tensor& a, const at::Tensor& b, const at::Tensor& u, const at::Tensor& v) {
  if (!a.is_cpu() && u.scalar_type() == a.scalar_type()) {
    // The short product first: the long one then adds what it reads back while it multiplies.
    auto out = gemm(u, v);
    gemm_add(out, a, b);
    return out;
  }
  if (const auto panels = panel_product_of(a, b, u, v)) return run(*panels, a.options());
  if (!belongs_to_tiles(a, b)) return plus_product(gemm(a, b), u, v);
  auto out = at::empty({a.size(0), b.size(1)}, a.options());
  gemm_by_tiles(out, a, b, {u, v});
  return out;
}

at::Tensor gemm_packed(const at::Tensor& a, const PackedFactor& b, const at::Tensor& u, const at::Tensor& v) {
  if (b.transposed && has_few_packed_rows(a, b.matrix)) {
    if (has_rows_to_add(a, u, v)) return packed_rows_product(a, b.matrix, u, v);
    auto out = packed_rows_product(a, b.matrix);
    return u.defined() ? plus_product(std::move(out), u, v) : out;
  }
  const PackedPanels panels(b.matrix, b.transposed ? tensor::PairsOf::kColumns : tensor::PairsOf::kRows);
  if (const auto product = panel_product_of(a, panels, u, v)) return run(*product, a.options());
  if (const auto product = panel_product_of(a, panels)) return plus_product(run(*product, a.options()), u, v);
  const auto dtype = a.scalar_type();
  const auto& matrix = b.matrix;
  const std::int64_t inner = a.size(1), columns = b.transposed ? matrix.rows : matrix.columns;
  constexpr std::int64_t kUnpackedWhole = 1 << 16;  // elements; float32 has a library's bits then, as where it is dense
  if (belongs_to_tiles(a, columns, b.transposed) ||
      (a.is_cpu() && dtype == at::kFloat && matrix.rows * matrix.columns > kUnpackedWhole)) {
    auto out = at::empty({a.size(0), columns}, a.options());
    gemm_by_tiles(out, a, Unpacked(b, dtype), {u, v});
    return out;
  }
  constexpr std::int64_t kPartBytes = 2 << 20, kFewestColumns = 128;
  const std::int64_t fitting = kPartBytes / std::max<std::int64_t>(1, inner * a.element_size());
  const std::int64_t width =
      a.is_cpu() ? std::max(kFewestColumns, fitting / kColumnsAThread * kColumnsAThread) : columns;
  const auto part_of = [&](std::int64_t begin, std::int64_t count) {
    const auto part = b.transposed ? tensor::unpack(matrix, {begin, count, 0, inner}, dtype).t()
                                   : tensor::unpack(matrix, {0, inner, begin, count}, dtype);
    return u.defined() ? gemm_sum(a, part, u, v.narrow(1, begin, count)) : gemm(a, part);
  };
  if (columns <= width) return part_of(0, columns);
  auto out = at::empty({a.size(0), columns}, a.options());
  for (std::int64_t begin = 0; begin < columns; begin += width) {
    const auto count = std::min(width, columns - begin);
    out.narrow(1, begin, count).copy_(part_of(begin, count));
  }
  return out;
}

}  // namespace tessera::nn
