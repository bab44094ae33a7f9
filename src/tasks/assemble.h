#pragma once
// From a model folder to a model that trains: the steps of docs/architecture.md, "What flows", one after the other.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "checkpoint/pretrained.h"
#include "models/model.h"
#include "peft/apply.h"
#include "peft/several/several_adapters.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/io/tensor_source.h"

namespace tessera::tasks {

struct AssembleOptions {
  std::string model_folder;
  std::shared_ptr<const peft::PeftMethod> method = {};  // a new adapter
  std::string adapter_folder = {};                      // start from this adapter (its method is read there)
  std::vector<peft::AdapterFolder> several = {};        // or with all of these, one at a time or side by side
  peft::Training train_several = peft::Training::kNone;
  /// Weights that a folder has packed stay packed. Dense ones are packed as they are read where config.json or
  /// `quantization` says so; false: they stay as they are.
  bool pack_dense = true;
  /// Nothing trains: on a CPU, what GGUF has packed then stays packed, as under an adapter.
  bool is_frozen = false;
  std::optional<families::Quantization> quantization = {};  // before that of config.json
  std::int64_t min_vocab_size = 0;                          // the token tables grow to at least so many rows
  std::string attn_implementation = {};                     // models::BuildOptions
  std::optional<models::ClassifierHead> classifier = {};    // likewise; what the weights lack of it begins anew
  bool is_body_alone = false;  // the weights have no head, nobody computes with it, and no adapter brings one
  std::uint64_t seed = 42;
  bool freeze_lora_a = false;                // LoRA-FA
  std::optional<at::ScalarType> dtype = {};  // of the masters; unset: float32
  /// Backward computes the first of every so many of the model's own blocks again, whatever the units are; 0: as
  /// `fsdp` says.
  std::int64_t recompute_every = 0;
  fsdp::FsdpOptions fsdp = {};  // source and an unset wrap policy are filled in
  /// Called when the modules stand and none of them has memory yet, with the options that they are sharded by.
  std::function<void(const struct Assembled&, const fsdp::FsdpOptions&)> before_sharding = {};
};

struct Assembled {
  models::ModelConfig config;
  std::shared_ptr<models::Model> model;
  std::optional<peft::AdapterReport> adapters;
  std::shared_ptr<peft::SeveralAdapters> several = {};
  std::vector<std::string> new_weights = {};  // of a classifier's head: not in the source
  /// Of an adapter of a classifier over a base without such a head: what config.json should say of it.
  std::optional<checkpoint::ClassifierNames> classes = {};
  std::vector<std::string> notes = {};  // about the folders, for the user
  std::int64_t parameters = 0, trainable = 0;
  std::unique_ptr<fsdp::FullyShardedDataParallel> sharded;  // destroyed before the model
  /// Of a model with adapters.
  checkpoint::AdaptedModule adapted() const { return {*model, *adapters->method}; }
  /// Of one of several.
  checkpoint::AdaptedModule adapted(const peft::SeveralAdapters::Member& member) const {
    return {*member.skeleton, *member.method, model.get(), &member.names};
  }
};

/// Collective. Every rank reads only its own slices of the weights.
Assembled assemble(const AssembleOptions& options, std::shared_ptr<comm::Communicator> group);

}  // namespace tessera::tasks
