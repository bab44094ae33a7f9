#pragma once
// T5 as a GGUF file, and such a file as T5.
#include <nlohmann/json_fwd.hpp>

#include "families/t5_config.h"
#include "io/gguf.h"
#include "models/gguf_export.h"

namespace tessera::models {

/// What its tensors are called. A head whose input the model scales is written scaled where it is no table of tokens.
GgufSubject gguf_t5_subject(const families::T5Config& config);

/// As gguf_keys() (models/gguf_keys.h) of decoders. json: config.json, for the row length that no module has.
GgufExport gguf_t5_keys(const families::T5Config& config, const nlohmann::json& json);

/// config.json's keys but for the vocabulary's.
nlohmann::json gguf_t5_config(const io::GgufFile& file);

}  // namespace tessera::models
