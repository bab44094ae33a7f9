#include "tasks/positions_note.h"

#include <fmt/format.h>

namespace tessera::tasks {

std::string positions_note(const models::ModelConfig& model, const std::string& what, std::int64_t tokens) {
  if (model.known_positions == 0 || tokens <= model.known_positions) return {};
  return fmt::format("{} {} tokens, more than the {} positions that the model was made for (max_position_embeddings)\n",
                     what, tokens, model.known_positions);
}

}  // namespace tessera::tasks
