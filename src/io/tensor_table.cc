#include "io/tensor_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::io {
namespace {

void check_range(const TensorInfo& info, std::int64_t size, const char* unit, std::int64_t begin,
                 const at::Tensor& out) {
  TESSERA_CHECK(out.dim() == 1 && out.is_contiguous() && out.is_cpu(), "out must be a 1-D contiguous CPU tensor");
  if (begin < 0 || begin > size || out.numel() > size - begin)
    throw DataError(fmt::format("{}: tensor '{}' has {} {}; asked for [{}, {})", info.file, info.name, size, unit,
                                begin, begin + out.numel()),
                    info.file);
}

}  // namespace

void TensorTable::sort() {
  std::sort(infos_.begin(), infos_.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
}

const TensorInfo* TensorTable::find(const std::string& name) const {
  const auto it = std::lower_bound(infos_.begin(), infos_.end(), name,
                                   [](const TensorInfo& info, const std::string& n) { return info.name < n; });
  return it != infos_.end() && it->name == name ? &*it : nullptr;
}

void check_elements(const TensorInfo& info, std::int64_t begin, const at::Tensor& out) {
  check_range(info, info.numel(), "elements", begin, out);
}

void check_bytes(const TensorInfo& info, std::int64_t begin, const at::Tensor& out) {
  TESSERA_CHECK(out.scalar_type() == at::kByte, "bytes go to a tensor of uint8");
  check_range(info, info.nbytes(), "bytes", begin, out);
}

}  // namespace tessera::io
