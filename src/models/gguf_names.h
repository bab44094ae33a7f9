#pragma once
// The names of one architecture's tensors, in GGUF files and in Hugging Face folders.
#include <string>
#include <vector>

#include "io/gguf.h"
#include "models/gguf_layout.h"

namespace tessera::models {

/// "llama", or "mixtral" for a llama with experts: what decides names, keys and layouts.
std::string gguf_family(const io::GgufFile& file);

/// Families that are known, for messages.
std::vector<std::string> gguf_families();

/// Every tensor of the file as Hugging Face has it; merged experts give one each.
std::vector<GgufView> gguf_views(const io::GgufFile& file);

}  // namespace tessera::models
