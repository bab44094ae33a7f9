#pragma once
// Model and optimizer as Accelerate saves them under FSDP, for going on in Python and for coming from there:
//
//   type      model                                optimizer
//   FULL      pytorch_model_fsdp.bin               optimizer.bin            whole tensors, written by rank 0
//   SHARDED   pytorch_model_fsdp_0/                optimizer_0/             torch.distributed.checkpoint, every rank
//   its part LOCAL     pytorch_model_fsdp_rank<R>.bin       optimizer_rank<R>.bin    every rank's slices, as they lie
//
// FULL is streamed: rank 0 holds one tensor beside what it writes, other ranks nothing more. LOCAL files are this
// program's own ({"name@offset": 1-D tensor}); what FSDP1 calls LOCAL are flat tensors without parameter names, which
// `tessera inspect` lists.
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/save_queue.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/optimizer.h"

namespace tessera::checkpoint {

enum class TorchStateType { kFull, kSharded, kLocal };

/// param_groups of torch's Adam and AdamW: what is decayed, then what is not (as transformers' Trainer groups them).
struct TorchOptimizerOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  std::function<bool(const std::string& parameter)> decays = nullptr;  // null: all
};

/// Parameter -> its name in the files; "" : not saved. Null: all, under their own names.
using TorchName = std::function<std::string(const std::string& parameter)>;

/// Another name of a parameter: torch's state dicts hold tied weights under all their names, in one storage, and its
/// loaders ask for all of them.
struct TiedName {
  std::string name, parameter;
};

/// Collective. Into `folder`, which exists. tied: of parameters under their own names; LOCAL files have none.
void push_torch_model(fsdp::FullyShardedDataParallel& model, const std::string& folder, TorchStateType type,
                      const TorchName& name, SaveQueue& queue, const std::vector<TiedName>& tied = {});

/// Collective; rank 0 writes. torch.save(model.state_dict(), file), streamed: torch.load(file, weights_only=True) reads
/// it. CheckpointError on every rank where it cannot be written.
void save_torch_model(fsdp::FullyShardedDataParallel& model, const std::string& file,
                      const std::vector<TiedName>& tied);

/// Collective. Parameters keep their own names (name: as above).
void push_torch_optimizer(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer,
                          const TorchOptimizerOptions& options, const std::string& folder, TorchStateType type,
                          const TorchName& name, SaveQueue& queue);

/// Whichever type `folder` has (FULL first); null when it has none. Tensors have the names of the files.
std::shared_ptr<io::TensorSource> open_torch_model(const std::string& folder);
/// "state/<parameter>/<exp_avg>"; "state/<parameter>/step" counts the steps.
std::shared_ptr<io::TensorSource> open_torch_optimizer(const std::string& folder);

/// CheckpointError where `folder` has the files that Accelerate writes with use_dcp=False
/// (pytorch_model_fsdp_0_rank0.bin, optimizer_0_rank0.bin: pickles of DTensors, each of which is one rank's part).
void refuse_rank_files(const std::string& folder);

/// True when one of the three types of model is there, or one that is refused.
bool has_torch_state(const std::string& folder);

struct TorchNames {
  TorchName model, optimizer;
};
/// Collective. Trainable parameters and (unless null) the optimizer's state and steps. CheckpointError when something
/// is missing or has another size.
void load_torch_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer, const TorchNames& names,
                      const std::string& folder);

}  // namespace tessera::checkpoint
