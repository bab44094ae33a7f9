#pragma once
// The names of one architecture's tensors, in GGUF files and in Hugging Face folders.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "families/bert_config.h"
#include "families/decoder_config.h"
#include "families/t5_config.h"
#include "io/gguf.h"
#include "models/gguf_layout.h"

namespace tessera::models {

/// "llama", or "mixtral" for a llama with experts: what decides names, keys and layouts.
std::string gguf_family(const io::GgufFile& file);
/// The same of a model; empty: no file is written of its family.
std::string gguf_family(const families::DecoderConfig& config);
std::string gguf_family(const families::T5Config& config);
std::string gguf_family(const families::BertConfig& config);
/// general.architecture of a family's files.
std::string gguf_architecture(const std::string& family);
/// The same families' model_type in config.json.
std::string gguf_model_type(const std::string& family);

/// Those of all families, for messages.
std::vector<std::string> gguf_model_types();

/// The other way round: where a tensor of a Hugging Face folder stands in a file.
struct GgufPlace {
  std::string stored;  // empty: such tensors are left out
  GgufArrangement arrangement = GgufArrangement::kPlain;
  std::int64_t expert = -1;  // kExperts: which of the tensor's matrices
};
/// Nothing where the family has no such tensor. family: as gguf_family() says.
std::optional<GgufPlace> gguf_place(const std::string& family, const std::string& name);

/// Every tensor of the file as Hugging Face has it; merged experts give one each.
std::vector<GgufView> gguf_views(const io::GgufFile& file);

}  // namespace tessera::models
