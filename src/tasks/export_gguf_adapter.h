#pragma once
// `tessera export --gguf` of a LoRA adapter: a GGUF file that llama.cpp puts over its base (--lora), as the community's
// converter (convert_lora_to_gguf.py) writes it.
#include <memory>
#include <string>

#include "models/gguf_export.h"

namespace tessera::tasks {

struct GgufAdapterRequest {
  std::string model_folder;                         // of the base, with config.json
  std::string adapter_folder;                       // with adapter_config.json
  std::shared_ptr<const io::TensorSource> weights;  // the adapter's
  std::string output;                               // the file
  models::GgufForm form = models::GgufForm::kF32;   // but for kQ4KM
};

/// llama.cpp multiplies B A by alpha / rank. What scales otherwise (rsLoRA, alpha_pattern) is written so that this
/// gives the same. Returns a line for the terminal. ConfigError for other methods than LoRA, other families, and
/// adapters that change more than W + B A can say; DataError for tensors that are no factor of a matrix of the base.
std::string write_gguf_adapter(const GgufAdapterRequest& request);

}  // namespace tessera::tasks
