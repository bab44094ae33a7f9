#pragma once
// The names of one architecture's tensors, in GGUF files and in Hugging Face folders.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "models/gguf_layout.h"

namespace tessera::models {

/// "llama", or "mixtral" for a llama with experts: what decides names, keys and layouts.
std::string gguf_family(const io::GgufFile& file);

/// Families that are known, for messages.
std::vector<std::string> gguf_families();

/// The other way round: where a tensor of a Hugging Face folder stands in a file.
struct GgufPlace {
  std::string stored;  // empty: such tensors are left out
  enum class How { kPlain, kRotaryQuery, kRotaryKey, kTransposed, kOther } how = How::kPlain;
  std::int64_t layer = -1;
};
/// Nothing where the family has no such tensor.
std::optional<GgufPlace> gguf_place(const std::string& family, const std::string& name);

/// Every tensor of the file as Hugging Face has it; merged experts give one each.
std::vector<GgufView> gguf_views(const io::GgufFile& file);

}  // namespace tessera::models
