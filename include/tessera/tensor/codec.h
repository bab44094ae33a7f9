#pragma once
// Packed weights: a matrix that is kept as codes of few bits and statistics that scale them (absmax, zero points). A
// codec says how its tensors look and what they mean. The sharding runtime moves their bytes and never looks inside:
// they are not cast, not summed, and a slice ends only where a block does.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::tensor {

/// One of the tensors that a packed matrix is kept as: the codes, or one statistic of them.
struct PackedField {
  std::string name;  // what follows the parameter's name in files and modules: "" for the codes, else as in "absmax"
  at::ScalarType dtype = at::kByte;
  std::vector<std::int64_t> shape;
  std::int64_t block_bytes = 1;  // a slice of it begins and ends at multiples of this, or at its end
  bool is_codes() const { return name.empty(); }
  /// Of the field of this parameter: "q_proj.weight", "q_proj.weight.absmax".
  std::string full_name(const std::string& parameter) const { return is_codes() ? parameter : parameter + "." + name; }
};

class Codec;

/// A matrix [rows, columns], packed. fields: on one device, contiguous, as codec->fields(rows, columns) describes them.
struct PackedMatrix {
  std::shared_ptr<const Codec> codec;
  std::int64_t rows = 0, columns = 0;
  std::vector<at::Tensor> fields;
};

/// Rows [row, row + rows) and columns [column, column + columns) of a matrix.
struct MatrixTile {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
};

class Codec {
 public:
  virtual ~Codec() = default;
  /// What it is, with all its settings ("nf4, blocks of 64"): codecs of equal names give equal bytes.
  virtual std::string name() const = 0;
  /// Elements, in row-major order, that are coded together; only a matrix's last block may have fewer.
  virtual std::int64_t block_numel() const = 0;
  /// The codes first.
  virtual std::vector<PackedField> fields(std::int64_t rows, std::int64_t columns) const = 0;
  /// Packs a whole matrix of `numel` values. out: for each field where its bytes go. Error where the codec only reads.
  virtual void encode(const float* values, std::int64_t numel, const std::vector<std::byte*>& out) const = 0;
  /// The values of a part of the matrix; out: its first row, `stride` elements before the next. May be called by
  /// several threads at a time.
  virtual void decode(const PackedMatrix& matrix, const MatrixTile& tile, float* out, std::int64_t stride) const = 0;
  /// Rows, at most 16, that decode() reads best together: more than one where neighbours in memory are of several rows.
  virtual std::int64_t rows_together() const { return 1; }
  /// Whether inference rounds x, too.
  virtual bool rounds_inputs() const { return false; }
  /// x W^T [N, rows] as inference has it, of a codec that rounds x [N, columns], too; undefined: it is the product with
  /// the values. In x's dtype, on the device of x and the fields, without autograd.
  virtual at::Tensor inference_product(const PackedMatrix&, const at::Tensor& /*x*/) const { return {}; }
};

/// Packs a dense matrix, in memory of its own on its device; encoded there where the codec can.
PackedMatrix pack(const std::shared_ptr<const Codec>& codec, const at::Tensor& matrix);
/// The whole matrix, rounded to `dtype`: [rows, columns], on the fields' device; decoded there where the codec can.
at::Tensor unpack(const PackedMatrix& matrix, at::ScalarType dtype);
/// A part of it: [tile.rows, tile.columns].
at::Tensor unpack(const PackedMatrix& matrix, const MatrixTile& tile, at::ScalarType dtype);

}  // namespace tessera::tensor
