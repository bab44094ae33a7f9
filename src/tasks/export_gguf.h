#pragma once
// `tessera export --gguf`: a model's folder as one GGUF file for llama.cpp, Ollama and the like.
#include <cstdint>
#include <memory>
#include <string>

#include "models/gguf_export.h"

namespace tessera::tasks {

struct GgufRequest {
  std::string model_folder;  // with config.json
  std::string tokenizer_folder;
  std::shared_ptr<const io::TensorSource> weights;  // packed ones are unpacked
  std::string output;                               // the file
  std::string name_folder = {};                     // general.name is this folder's; empty: the model's
  models::GgufForm form = models::GgufForm::kF16;
};

/// Writes the file tensor by tensor. Returns a line for the terminal. ConfigError for families that are not written;
/// DataError for tokenizers that are not, and for weights that are not those of config.json.
std::string write_gguf(const GgufRequest& request);

/// general.name of what lies in this folder, and general.file_type, as the community's converter has them.
std::string gguf_title(const std::string& folder);
std::uint32_t gguf_file_type(models::GgufForm form);

}  // namespace tessera::tasks
