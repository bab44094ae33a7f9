#pragma once
// Folders that transformers and peft load as they are, written from sharded modules one unit at a time: peak memory is
// one unit, the file is written under a temporary name and renamed, and a failed save leaves what was there before.
//
// With a `queue` rank 0 writes there, perhaps later and from copies, and a failure is found there; without one the file
// is whole when the function returns, and a failure is thrown on every rank.
#include <functional>
#include <map>
#include <string>

#include "checkpoint/model_files.h"
#include "checkpoint/save_queue.h"
#include "peft/method.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::checkpoint {

/// What is written with the tensors, and how they are.
struct SaveOptions {
  ModelFiles files = {};                     // what travels with them
  std::int64_t vocab_size = 0;               // rows of the token tables, for config.json; 0: as the file says
  std::optional<at::ScalarType> dtype = {};  // of floating tensors; unset: their own. config.json says it, too
  std::vector<TokenId> token_ids = {};       // of the tokenizer that the model was trained with; see ConfigChanges
  std::optional<ClassifierNames> classifier = {};
  bool is_body_alone = false;    // the head is left out, and names are those of the body's own class (LlamaModel)
  at::Device device = at::kCPU;  // merges, unpacks and packs
};

/// What helps where SaveOptions::device has no memory left.
inline constexpr const char* kHelpInWriting = "--device cpu";

/// Collective; rank 0 writes. `folder`/model.safetensors, and what travels with it (model_files.h). CheckpointError
/// when the folder cannot be written, on every rank.
void save_pretrained(fsdp::FullyShardedDataParallel& model, const SaveOptions& options, const std::string& folder,
                     SaveQueue* queue = nullptr);

/// What a sharded model with adapters is made of: the module, and AdapterReport's method.
struct AdaptedModule {
  const nn::HookedModule& module;
  const peft::PeftMethod& method;
  /// Where the model that is sharded has several adapters and `module` is a skeleton with one of them: that model, and
  /// what the adapter's parameters are called in it.
  const nn::HookedModule* sharded = nullptr;
  const std::map<std::string, std::string>* names = nullptr;

  const nn::HookedModule& sharded_module() const { return sharded ? *sharded : module; }
  std::string sharded_name(const std::string& parameter) const {
    return names && names->contains(parameter) ? names->at(parameter) : parameter;
  }
};

/// Collective; rank 0 writes. `folder`/adapter_config.json and adapter_model.safetensors, as PEFT writes them, and the
/// tokenizer.
void save_adapter(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted, const SaveOptions& options,
                  const std::string& folder, SaveQueue* queue = nullptr);

/// Collective. Calls visit(name, tensor) on every rank for every parameter that is not an adapter's, whole and with its
/// adapter merged in (float32 sums, the weight's dtype), one unit at a time; `device` computes, and besides holds the
/// adapters. What has none is on the host. ConfigError where the method is no change of weights.
void visit_merged(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted, at::Device device,
                  const std::function<void(const std::string& name, const at::Tensor& tensor)>& visit);

/// kUntied: the head was given a matrix of its own (peft::AdapterReport::untied), which config.json then says.
enum class Head { kAsInBase, kUntied };

/// Collective; rank 0 writes. As save_pretrained(), with the adapters merged into the weights. The model keeps them.
void save_merged(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted, const SaveOptions& options,
                 const std::string& folder, Head head = Head::kAsInBase);

/// The values that a weight was packed from, as the folder has them, whole.
using StoredWeight = std::function<at::Tensor(const std::string& parameter)>;

/// Collective. First values of new adapters that depend on the weights (peft::PeftMethod::from_weights); without a seed
/// those that a saved adapter's file does not hold. Each weight is one rank's work. Memory: the values that this rank
/// computed, of a size()-th of the weights, and one parameter; all adapters, whole, where values depend on them (DoRA).
void initialise_from_weights(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted,
                             std::optional<std::uint64_t> seed, const StoredWeight& stored);

/// Collective. Tensors of the adapter's file that are made of several parameters (peft::PeftMethod::in_file).
peft::Values made_for_file(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted);

/// Collective. Whole values into the parameters of these names.
void write_values(fsdp::FullyShardedDataParallel& model, const peft::Values& values);

}  // namespace tessera::checkpoint
