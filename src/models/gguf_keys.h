#pragma once
// The sizes and settings of a model as keys of a GGUF file.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "families/decoder_config.h"
#include "models/gguf_export.h"

namespace tessera::models {

/// A file without its own tensors: keys as the community's converter writes them, factors of rotary positions, and a
/// note. family: as gguf_family() says; json: config.json, for a size that no module has. ConfigError for what the file
/// has no key for, or its readers (llama.cpp) no code.
GgufExport gguf_keys(const std::string& family, const families::DecoderConfig& config, const nlohmann::json& json);

/// ConfigError: the file has no key for it.
[[noreturn]] void refuse_in_gguf(const std::string& what);

}  // namespace tessera::models
