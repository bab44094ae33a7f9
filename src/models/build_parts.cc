#include "models/build_parts.h"

namespace tessera::models {

std::shared_ptr<nn::Linear> make_linear(const families::Blueprint& part, at::ScalarType dtype,
                                        nn::WeightLayout layout) {
  return std::make_shared<nn::Linear>(part.sizes[0], part.sizes[1], part.parameters.size() == 2, dtype, layout);
}

std::shared_ptr<nn::Embedding> make_embedding(const families::Blueprint& part, at::ScalarType dtype,
                                              std::int64_t padding_idx) {
  return std::make_shared<nn::Embedding>(part.sizes[0], part.sizes[1], dtype, padding_idx);
}

}  // namespace tessera::models
