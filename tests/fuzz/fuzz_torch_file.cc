// Any bytes as a file of torch.save: an error or tensors that can be read, nothing else.
#include <ATen/core/Tensor.h>

#include "fuzz/temporary_file.h"
#include "io/stored_tensor.h"
#include "io/torch_file.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kMaxElements = 1 << 16;  // an expanded tensor may claim any size
  try {
    const auto source =
        tessera::io::make_stored_source(tessera::io::list_torch_file(tessera::fuzz::as_file(data, size)));
    for (const auto& info : source->tensors())
      if (info.numel() <= kMaxElements) tessera::io::read_tensor(*source, info.name);
  } catch (const tessera::DataError&) {
  }
  return 0;
}
