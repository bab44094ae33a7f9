#pragma once
// Reads the header of a safetensors file (https://github.com/huggingface/safetensors, "Format") with the upstream
// checks.
#include <string>
#include <vector>

#include "io/stored_tensor.h"

namespace tessera::io {

std::vector<StoredTensor> list_safetensors(const std::string& file);

}  // namespace tessera::io
