// Any bytes as a safetensors file: an error or tensors that can be read, nothing else.
#include <ATen/core/Tensor.h>

#include "fuzz/safetensors_file.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto source = tessera::io::open_safetensors(tessera::fuzz::as_file(data, size));
    for (const auto& info : source->tensors()) {
      tessera::io::read_tensor(*source, info.name);
      source->map(info.name);
    }
  } catch (const tessera::DataError&) {
  }
  return 0;
}
