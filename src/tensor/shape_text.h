#pragma once
// Shapes in messages.
#include <ATen/core/Tensor.h>

#include <string>

namespace tessera::tensor {

/// "[2, 3]"
inline std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace tessera::tensor
