// Any bytes as a GGUF file: an error or tensors that can be read, nothing else.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "fuzz/gguf_file.h"
#include "fuzz/temporary_file.h"
#include "io/gguf.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto source = tessera::io::open_gguf(tessera::fuzz::as_file(data, size));
    for (const auto& info : source->tensors()) {
      tessera::io::read_tensor(*source, info.name);
      source->map(info.name);
      auto bytes = at::empty({info.nbytes()}, at::kByte);
      source->read_bytes(info.name, 0, bytes);
      source->map_bytes(info.name);
    }
  } catch (const tessera::DataError&) {
  }
  return 0;
}
