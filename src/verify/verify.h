#pragma once
// `tessera verify DIR`: compares this implementation with reference tensors that lie beside a model (family A of the
// goldens: io*.safetensors), with reference generations (expect.json with "runs"), or replays a training run (family B:
// expect.json with "base" and "settings"; of transformers' Trainer: with "log_history"; of torch FSDP: with
// "wrapping"), or combines adapters ("combined"), or losses and runs of preference training (of TRL: with "cases", or
// with "micro_losses", prepared rows: with "per_device_train_batch_size"), or reads checkpoints of Accelerate
// (expect_model.safetensors).
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "tasks/assemble.h"
#include "tessera/fsdp/fully_shard.h"
#include "verify/comparison.h"

namespace tessera::verify {

/// What reference tensors were computed with.
constexpr const char* kReferenceAttention = "eager";

struct VerifyOptions {
  std::string folder;
  bool sharded = false;            // through fsdp, also on one rank; false: plain modules
  double logits_tolerance = 1e-5;  // relative to the largest magnitude of the tensor
  double grad_tolerance = 1e-4;
  std::string tokenizer = {};  // of prepared rows; empty: of the set that the folder lies in
  /// On a model folder, chosen by expect.json: by row ("adapter_names") or, of a generation, by run ("adapter").
  std::vector<peft::AdapterFolder> adapters = {};
  fsdp::FsdpOptions fsdp;
};

/// Returns 0 when everything is within the tolerances, 1 otherwise.
int verify(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

/// Collective. Compares a folder of any kind. DataError names what in expect.json is not as expected.
bool verify_folder(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);

/// Collective. Each compares one kind of folder; a title line and the table go to `out` (rank 0's).
bool verify_outputs(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_run(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_fsdp(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_trainer(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_generation(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_checkpoint(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_combined(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_preference(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_preference_run(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_prepared(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);
bool verify_processors(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out);

/// The model of the folder: in units with --sharded (gradients are summed over ranks, not averaged), else plain
/// modules.
tasks::Assembled load_model(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group);

/// The contiguous rows of a global batch that a rank computes: [rank * rows / size, (rank + 1) * rows / size). With
/// fewer rows than ranks every rank takes all rows, and sums over ranks count each row `copies` times.
struct RowShare {
  std::int64_t begin = 0, end = 0;
  double copies = 1;
};
RowShare row_share(std::int64_t rows, const comm::Communicator& group);

}  // namespace tessera::verify
