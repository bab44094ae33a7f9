#pragma once
#include <string>

namespace tessera::tasks {

/// README.md in the folder of a result: base model, data set, flags (run.json) and the numbers that the run reached
/// (trainer_state.json). A README.md that somebody else wrote stays.
void write_model_card(const std::string& folder, const std::string& name);

}  // namespace tessera::tasks
