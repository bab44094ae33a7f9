#pragma once
// Weights of a model folder of which some are packed, or are packed while they are read. Under its name
// ("...q_proj.weight") a packed matrix looks like a dense one: it has a dense shape, and read() gives its values.
// read_bytes() and map_bytes() give its codes, and the statistics lie beside it ("...q_proj.weight.absmax"), as the
// codec names them.
#include <map>
#include <memory>
#include <set>
#include <string>

#include "quant/packed_files.h"
#include "tessera/io/tensor_source.h"

namespace tessera::quant {

class PackedSource : public io::TensorSource {
 public:
  /// Null: the tensor is dense, or there is none.
  virtual std::shared_ptr<const tensor::Codec> codec(const std::string& name) const = 0;
  /// True of a form that is as good for dense weights, which may train: nothing but an adapter over it wants it packed.
  virtual bool is_also_dense() const { return false; }
};

/// What config.json says of packed weights, and their tensors do not.
struct StoredSettings {
  double int8_threshold = 6.0;            // LLM.int8(): see int8_codec()
  bool gptq_v2 = false;                   // GPTQ: zero points are stored as they are, not less one
  std::int64_t bits = 0, group_size = 0;  // GPTQ, AWQ: what all matrices have; 0: not said
};

/// A folder that bitsandbytes wrote, in 4 bits or in 8 (LLM.int8()), or one of GPTQ or AWQ: nothing is unpacked unless
/// read() asks for it. Null where no tensor is packed. DataError for statistics that do not fit, and types and dtypes
/// that there are not.
std::shared_ptr<PackedSource> stored_packed(std::shared_ptr<const io::TensorSource> stored,
                                            const StoredSettings& settings = {});

/// How a dense matrix is packed while it is read.
struct MatrixPacking {
  PackedSettings form = FourBitSettings{};
  at::ScalarType rounded = at::kFloat;  // the dtype that values are rounded to before
  bool transposed = false;              // the source has [in, out] (GPT-2), the codes are of [out, in]
};
/// Who asks for a range of codes makes these alone; double quantisation goes over the whole matrix once, for its mean.
/// Memory: a piece of the matrix, a transposed one whole. packings: by the names of the source, matrices.
std::shared_ptr<const PackedSource> packing_source(std::shared_ptr<const io::TensorSource> dense,
                                                   std::map<std::string, MatrixPacking> packings);

/// As if these matrices were not packed: their values, without their statistics. transposed: those of them that are
/// shown as [in, out].
std::shared_ptr<const PackedSource> unpacked_source(std::shared_ptr<const PackedSource> packed,
                                                    std::set<std::string> dense, std::set<std::string> transposed);

}  // namespace tessera::quant
