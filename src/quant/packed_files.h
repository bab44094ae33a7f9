#pragma once
// What bitsandbytes and transformers store for a packed matrix, to be written.
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "quant/four_bit_codec.h"
#include "tessera/io/tensor_source.h"

namespace tessera::quant {

/// LLM.int8().
struct Int8Settings {
  double threshold = 6.0;
};
/// The forms that matrices are packed to here.
using PackedSettings = std::variant<FourBitSettings, Int8Settings>;
std::shared_ptr<const tensor::Codec> codec_of(const PackedSettings& settings, std::int64_t columns);

struct FileForm {
  PackedSettings settings;
  at::ScalarType dtype = at::kFloat;   // of the values, before they were packed
  at::ScalarType storage = at::kByte;  // of 4-bit codes: the same bytes under this name
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The tensors that a matrix becomes: codes, statistics, tables, and the JSON of its state. offset: of double
/// quantisation, where it is known before the matrix is; else the JSON has room for any, and ends in spaces.
/// ConfigError where the codes are no whole number of `storage`.
std::vector<io::TensorInfo> stored_infos(const FileForm& form, const std::string& name, std::int64_t rows,
                                         std::int64_t columns, std::optional<float> offset);
enum class StateRoom { kExact, kForAnyOffset };
NamedTensors stored_tensors(const FileForm& form, const std::string& name, const tensor::PackedMatrix& matrix,
                            StateRoom room);

}  // namespace tessera::quant
