// Any bytes as a GGUF file of a model: an error, or a configuration and tensors under a folder's names.
#include <nlohmann/json.hpp>

#include "families/families.h"
#include "fuzz/gguf_file.h"
#include "fuzz/temporary_file.h"
#include "io/gguf.h"
#include "models/gguf_model.h"
#include "models/gguf_names.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  try {
    const auto file = io::open_gguf(fuzz::as_file(data, size));
    for (const auto& view : models::gguf_views(*file)) {
      if (!view.stored_row || view.shape.empty()) continue;
      for (const auto row : {std::int64_t{0}, view.shape[0] - 1})
        if (row >= 0) view.stored_row(row);
    }
    families::parse_config(models::gguf_config(*file), "config.json");
  } catch (const Error&) {
  }
  return 0;
}
