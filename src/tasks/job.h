#pragma once
// Steps that the training tasks have in common.
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tasks/assemble.h"

namespace tessera::tasks {

/// The trainable-parameters line and, when asked for, the sharded model.
void describe(const Assembled& model, bool print_model, std::ostream& out);
/// Collective: the adapter, or the whole model with the files of `base_folder`.
void save_trained(Assembled& model, const std::string& base_folder, const std::string& folder);
std::string saved_line(const Assembled& model, const std::string& folder);
/// Collective: prints and returns peak resident and proportional memory of every rank.
nlohmann::ordered_json report_memory(comm::Communicator& group, std::ostream& out);

}  // namespace tessera::tasks
