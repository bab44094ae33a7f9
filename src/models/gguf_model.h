#pragma once
// A GGUF file as the Hugging Face folder that it was made from: config.json's keys, and the weights under their names
// there, undone what the conversion did to them (permuted rotary rows, transposed or regrouped matrices, norms + 1,
// merged experts).
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/gguf.h"
#include "quant/packed_source.h"

namespace tessera::models {

/// The file itself if `path` ends in .gguf; the one .gguf file of a folder that has no config.json. DataError when such
/// a folder holds several.
std::optional<std::string> gguf_file_of(const std::string& path);

/// config.json for the file: model_type and that family's keys. ConfigError for architectures that are not known (lists
/// them). Those of gguf_model_types() are.
nlohmann::json gguf_config(const io::GgufFile& file);

/// The weights under Hugging Face names. DataError for a tensor that the architecture does not have.
std::shared_ptr<io::TensorSource> gguf_weights(std::shared_ptr<const io::GgufFile> file);

/// config.json of a folder, or that of a GGUF file or of a folder that holds one.
nlohmann::json read_model_config(const std::string& path);

/// io::open_weights(), for GGUF too; of a folder with packed weights a quant::PackedSource.
std::shared_ptr<io::TensorSource> open_model_weights(const std::string& path);

/// The same of weights that are opened already, as the folder's config.json describes them; null: none are packed.
std::shared_ptr<quant::PackedSource> packed_in_folder(std::shared_ptr<const io::TensorSource> stored,
                                                      const std::string& folder);

}  // namespace tessera::models
