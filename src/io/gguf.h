#pragma once
// The tensors of a GGUF file, dequantised by ranges.
#include <memory>
#include <string>

#include "formats/gguf.h"
#include "io/gguf_blocks.h"
#include "tessera/io/tensor_source.h"

namespace tessera::io {

/// Reads of the tensors give floats whatever the file holds: TensorInfo::dtype is that of F32, F16, BF16, F64 and
/// integer tensors, and float32 for quantised ones (io/gguf_blocks.h), of which read() takes whole blocks of 32 or 256
/// elements and converts only those that the range touches; read_bytes() and map_bytes() give their blocks as they are.
/// map() works for tensors that are not quantised. Names and row-major shapes are the file's.
class GgufFile : public TensorSource {
 public:
  virtual const GgufHeader& header() const = 0;
  /// "Q4_K", for messages; the name must exist.
  virtual std::string type_of(const std::string& tensor) const = 0;
  /// Of a quantised tensor; null for others.
  virtual const GgufBlock* block_of(const std::string& tensor) const = 0;
};

/// DataError for files that are damaged (see parse_gguf_header()), and for tensors of other types, with sizes that do
/// not fit their blocks or that end beyond the file.
std::shared_ptr<GgufFile> open_gguf(const std::string& file);

}  // namespace tessera::io
