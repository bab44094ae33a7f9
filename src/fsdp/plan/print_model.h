#pragma once
#include <string>

#include "fsdp/runtime/runtime.h"

namespace tessera::fsdp {

/// The module tree as PyTorch prints it; each unit's module is wrapped in a line that says what is sharded and how.
/// Equal layers of a list are one: "(0-29): 30 x LlamaDecoderLayer(".
std::string print_model(const Runtime& runtime);

}  // namespace tessera::fsdp
