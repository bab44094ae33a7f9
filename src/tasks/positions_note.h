#pragma once
#include <cstdint>
#include <string>

#include "models/model.h"

namespace tessera::tasks {

/// The line about a text (`what`) that is longer than the rotary positions the model was made for, which computes it
/// all the same; empty: it is not.
std::string positions_note(const models::ModelConfig& model, const std::string& what, std::int64_t tokens);

}  // namespace tessera::tasks
