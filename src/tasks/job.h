#pragma once
// Steps that the training tasks have in common.
#include <iosfwd>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "checkpoint/model_files.h"
#include "checkpoint/save_queue.h"
#include "report/metrics.h"
#include "tasks/assemble.h"
#include "text/tokenizer.h"
#include "train/session.h"

namespace tessera::tasks {

/// The trainable-parameters line and, when asked for, the sharded model; unset: unless that is long.
void describe(const Assembled& model, std::optional<bool> print_model, std::ostream& out);
/// What a result takes along.
struct ResultFiles {
  std::string model_folder;  // of the base
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::string tokenizer_path;  // where it was opened
  checkpoint::WeightDtype dtype = checkpoint::WeightDtype::kAuto;
  std::optional<checkpoint::ClassifierNames> classes = {};  // of a classifier
};
/// Collective: the adapter, or the whole model; with it the tokenizer and what else travels (checkpoint/model_files.h).
/// queue: see checkpoint/pretrained.h.
void save_trained(Assembled& model, const ResultFiles& files, const std::string& folder,
                  checkpoint::SaveQueue* queue = nullptr);
/// The same of one of several adapters.
void save_member(Assembled& model, const peft::SeveralAdapters::Member& member, const ResultFiles& files,
                 const std::string& folder, checkpoint::SaveQueue* queue = nullptr);
/// Under which names upstream's state dict of the model holds the table of tokens besides its own.
std::vector<checkpoint::TiedName> tied_names(const Assembled& model);
/// Fills torch_state and the names of parameters in Accelerate's files: the type that the launch asks for.
void set_torch_state(const Assembled& model, train::CheckpointContent& content);
std::string saved_line(const Assembled& model, const std::string& folder);
/// Collective: prints and returns peak resident and proportional memory of every rank.
nlohmann::ordered_json report_memory(comm::Communicator& group, std::ostream& out);
/// What is printed of it: each rank's share of memory now (pages that ranks share count in parts), its peak with all of
/// them, and the sum of the shares.
std::string memory_line(const nlohmann::ordered_json& ranks);

/// Collective: of a run that signals have stopped in good order, 128 + this rank's; where it got none, the first rank's
/// that did.
int interrupted_exit_code(comm::Communicator& group);

}  // namespace tessera::tasks
