// Any bytes as a safetensors file with packed weights (4-bit states and statistics, int8, GPTQ, AWQ): an error or
// values that can be read, nothing else.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "fuzz/safetensors_file.h"
#include "fuzz/temporary_file.h"
#include "quant/packed_source.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto source = tessera::quant::stored_packed(tessera::io::open_safetensors(tessera::fuzz::as_file(data, size)),
                                                      {.gptq_v2 = size % 2 == 0});
    if (!source) return 0;
    for (const auto& info : source->tensors()) {
      tessera::io::read_tensor(*source, info.name);
      auto bytes = at::empty({info.nbytes()}, at::kByte);
      source->read_bytes(info.name, 0, bytes);
      source->map_bytes(info.name);
    }
  } catch (const tessera::DataError&) {
  }
  return 0;
}
