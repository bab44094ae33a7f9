#pragma once
// Products in float32 of our own. Parts of the second factor become panels that stay in the cache
// (kernels/float_panels.h): unpacked from codes, widened from 16 bits, or copied; each once for up to packed_rows()
// rows of the first factor (base/gemm_tiles.h).
#include <ATen/core/Tensor.h>

#include "nn/kernels/prefetch.h"
#include "tessera/tensor/codec.h"

namespace tessera::nn {

/// The second factor [K, N]. Where it lies by rows, tiles are parts of it; by columns, of its transpose [N, K].
class TiledFactor {
 public:
  virtual ~TiledFactor() = default;
  virtual bool lies_by_columns() const = 0;
  /// A part of what lies in memory, in float32: tile.rows rows of tile.columns, `stride` floats apart. Called by
  /// several threads.
  virtual void read(const tensor::MatrixTile& tile, float* out, std::int64_t stride) const = 0;
  /// What read() will read.
  virtual kernels::MemoryRows memory(const tensor::MatrixTile& tile) const = 0;
};

/// What is added to a product on the way, [M, R] times [R, N] of any floating dtype; undefined: nothing.
struct Addend {
  at::Tensor u, v;
};

/// Of factors [rows, inner] [inner, columns]. contiguous_rows: of the first; contiguous_columns: of the second, in
/// memory.
struct ProductShape {
  std::int64_t rows, inner, columns;
  bool contiguous_rows, contiguous_columns;
};

/// The product a b belongs here, on CPUs. Of 16 bits: where the processor has no instruction for them; libtorch takes
/// their elements one by one there, but for a few rows with columns of b that are contiguous in memory (generation),
/// for which it has fast dot products. Of float32: where no library is as fast (multiplies_float32(),
/// base/cpu_level.h), unless the product is small; where oneDNN is (onednn_matmul.h), a product of a number of tokens
/// for which it would have to make code.
bool belongs_to_tiles(const at::Tensor& a, const at::Tensor& b);
/// The same for b of a's dtype that is yet to be made.
bool belongs_to_tiles(const at::Tensor& a, std::int64_t columns, bool contiguous_columns);
/// The same for CPU factors that are yet to be laid out.
bool belongs_to_tiles(at::ScalarType dtype, const ProductShape& shape);

/// out = alpha * (a b + u v), or out += that, rounded once to out's dtype. a: [M, K] of any floating dtype, out: [M, N]
/// with contiguous rows. An element does not depend on the number of rows and threads.
void gemm_by_tiles(const at::Tensor& out, const at::Tensor& a, const TiledFactor& b, const Addend& addend = {},
                   double alpha = 1.0, bool add = false);
/// b: [K, N] of a's dtype, its rows or its columns contiguous (else it is copied); or both with a leading batch size,
/// whose products threads share, and no addend.
void gemm_by_tiles(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addend& addend = {},
                   double alpha = 1.0, bool add = false);

}  // namespace tessera::nn
