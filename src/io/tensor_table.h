#pragma once
// The list of tensors that a source shows, sorted by name.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/io/tensor_source.h"

namespace tessera::io {

class TensorTable {
 public:
  void add(TensorInfo info) { infos_.push_back(std::move(info)); }
  /// After the last add().
  void sort();
  const std::vector<TensorInfo>& all() const { return infos_; }
  const TensorInfo* find(const std::string& name) const;

 private:
  std::vector<TensorInfo> infos_;
};

/// What read() asks for: DataError unless elements [begin, begin + out.numel()) are inside the tensor.
void check_elements(const TensorInfo& info, std::int64_t begin, const at::Tensor& out);

/// What read_bytes() asks for: likewise.
void check_bytes(const TensorInfo& info, std::int64_t begin, const at::Tensor& out);

}  // namespace tessera::io
