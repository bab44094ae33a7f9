#include "tessera/io/tensor_source.h"

#include <ATen/ops/empty.h>

#include "io/tensor_table.h"
#include "tessera/base/error.h"

namespace tessera::io {

void TensorSource::read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const {
  const auto* info = find(name);
  if (!info) return read(name, begin, std::move(out));  // whose error names it
  check_bytes(*info, begin, out);
  const auto size = static_cast<std::int64_t>(c10::elementSize(info->dtype));
  TESSERA_CHECK(info->packed_bytes == 0 && begin % size == 0 && out.numel() % size == 0,
                "bytes of '" + name + "' must be whole elements, and not unpacked on their way");
  if (out.numel() > 0) read(name, begin / size, out.view(info->dtype));
}

at::Tensor read_tensor(const TensorSource& source, const std::string& name) {
  const auto* info = source.find(name);
  auto flat = at::empty({info ? info->numel() : 0}, at::TensorOptions().dtype(info ? info->dtype : at::kFloat));
  source.read(name, 0, flat);
  return flat.view(info->shape);
}

}  // namespace tessera::io
