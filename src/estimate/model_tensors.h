#pragma once
// What a model consists of, by the headers of its weight files alone: no memory, no libtorch, milliseconds.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::estimate {

struct ModelTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;  // as safetensors spells it, "F32"; empty: quantised blocks of a GGUF file
  std::int64_t numel() const;
};

/// The parameters of a model folder (model.safetensors, its sharded form, or one .gguf file) or of one such file;
/// copies of tied tables and what once were buffers are left out. Nothing when a folder has a config.json, but its
/// shapes are not in headers: only the model's code knows them. ConfigError when there is no such path or no model in
/// it, DataError for damaged files.
std::optional<std::vector<ModelTensor>> read_model_tensors(const std::string& path);

}  // namespace tessera::estimate
