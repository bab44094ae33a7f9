#pragma once
// Tensors that lie uncompressed in files: what safetensors and torch's .bin readers have in common.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/file_reads.h"
#include "io/input_file.h"
#include "tessera/io/tensor_source.h"

namespace tessera::io {

struct StoredTensor {
  TensorInfo info;
  std::shared_ptr<const InputFile> file;
  std::uint64_t offset = 0;           // bytes from the start of the file to the first element
  std::vector<std::int64_t> strides;  // in elements; empty: contiguous
};

/// numel * element size, or a DataError of info.file that names the tensor when a size is negative, there are more than
/// 64 of them, or the product overflows.
std::uint64_t checked_nbytes(const TensorInfo& info);

/// Elements [begin, begin + out.numel()) of a contiguous one.
FileRead read_of(const StoredTensor& tensor, std::int64_t begin, const at::Tensor& out, Readers readers);

/// A source over them. The caller has checked that every element lies inside its file and that no two names are equal.
std::shared_ptr<TensorSource> make_stored_source(std::vector<StoredTensor> tensors);

}  // namespace tessera::io
