#pragma once
// Folders that transformers and peft load as they are, written from sharded modules one unit at a time: peak memory is
// one unit, the file is written under a temporary name and renamed, and a failed save leaves what was there before.
#include <string>
#include <vector>

#include "peft/lora.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::checkpoint {

/// Collective; rank 0 writes. `folder`/model.safetensors, and copies of the files beside the weights in `base_folder`
/// (config.json, generation_config.json, tokenizer files). CheckpointError when the folder cannot be written, on every
/// rank.
void save_pretrained(fsdp::FullyShardedDataParallel& model, const std::string& base_folder, const std::string& folder);

/// Collective; rank 0 writes. `folder`/adapter_config.json and adapter_model.safetensors.
void save_adapter(fsdp::FullyShardedDataParallel& model, const peft::LoraConfig& config, const std::string& folder);

/// Copies config.json, generation_config.json and tokenizer files that exist in `from`.
void copy_model_files(const std::string& from, const std::string& to);

}  // namespace tessera::checkpoint
