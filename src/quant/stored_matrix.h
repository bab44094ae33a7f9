#pragma once
// What the tensors of a folder are, once some are known to be packed matrices.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "quant/packed_source.h"
#include "tessera/io/tensor_source.h"

namespace tessera::quant {

struct StoredMatrix {
  std::shared_ptr<const tensor::Codec> codec;
  std::int64_t rows = 0, columns = 0;
  at::ScalarType dtype = at::kFloat;  // of the values, as the folder's maker had them
  /// By field, as the codec lists them: the tensor whose bytes it is, or its value.
  std::vector<std::variant<std::string, at::Tensor>> fields = {};
};

struct StoredMatrices {
  std::map<std::string, StoredMatrix> by_name;  // "...q_proj.weight", whatever the codes are called
  std::set<std::string> hidden;                 // tensors beside them that say how they are packed
};

/// Each adds what it knows. DataError for statistics that do not fit, and types and dtypes that there are not.
void find_four_bit(const io::TensorSource& source, StoredMatrices& found);
void find_int8(const io::TensorSource& source, double threshold, StoredMatrices& found);
void find_grouped(const io::TensorSource& source, const StoredSettings& settings, StoredMatrices& found);

/// DataError about a tensor.
[[noreturn]] void refuse_tensor(const io::TensorInfo& info, const std::string& what);

}  // namespace tessera::quant
