#pragma once
// What a model consists of, by the headers of its weight files or by its config.json: no memory, no libtorch,
// milliseconds.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "families/families.h"
#include "hub/model_folder.h"

namespace tessera::estimate {

struct ModelTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;              // as safetensors spells it, "F32"; empty: quantised blocks of a GGUF file, or packed
  std::int64_t packed_bytes = 0;  // of codes and statistics, in the file, where it is kept in few bits; 0: it is dense
  /// Of a projection to queries whose attention keeps its probabilities for backward on a GPU (nn/composite: T5, BERT):
  /// its heads. 0: it makes them again, or nothing is said of them. kept_on_cpu: there, too.
  std::int64_t kept_heads = 0;
  bool kept_on_cpu = false;
  /// Of the same, where scores depend on distances (DeBERTa): rows of the table of positions, and how many tables are
  /// made of it for a layer.
  std::int64_t positions = 0, position_tables = 0;
  bool reads_positions = false;  // one that makes such a table
  /// Of a projection to queries whose attention makes its probabilities again: its heads, where that is known.
  std::int64_t heads = 0;
  /// Of a matrix in a block: elements a token that the block keeps for backward of its output and of what is made of
  /// that. Unset: the output, once.
  std::optional<std::int64_t> kept_outputs = {};
  std::int64_t experts_per_token = 2;  // of a mixture
  /// Of a matrix in a block: it reads the residual stream as it is, which nothing else there keeps for backward.
  bool reads_stream = false;
  bool in_out = false;  // a matrix [in, out]: GPT-2's Conv1D
  /// Of an encoder-decoder model: it lies in the encoder; or in the decoder, and is given the encoder's tokens.
  bool in_encoder = false, reads_encoder = false;
  std::int64_t numel() const;
};

/// The parameters of a model folder (model.safetensors, its sharded form, or one .gguf file) or of one such file;
/// copies of tied tables and what once were buffers are left out. A folder with a config.json alone: what its family's
/// description says. A folder whose config.json has a quantization_config: shapes as that description says, bytes as
/// the files have them, or as bitsandbytes would make them. ConfigError when there is no such path, no model in it or
/// no such family, DataError for damaged files.
std::vector<ModelTensor> read_model_tensors(const std::string& path);

/// What a family's description says.
std::vector<ModelTensor> tensors_of(const families::FamilyConfig& config);

/// A matrix in a block, which an adapter may sit on and 4- and 8-bit loading packs.
bool is_linear(const ModelTensor& tensor);

/// Of the output head, by its name.
bool is_head(const std::string& parameter);

struct MatrixSides {
  std::int64_t in, out;
};
MatrixSides sides_of(const ModelTensor& matrix);

/// "model.layers.0.self_attn.q_proj.weight" -> "model.layers.0.self_attn.q_proj".
std::string module_of(const std::string& parameter);

/// Where what is counted lies: a folder or file; of a repository on the Hub the settings alone; of an adapter the model
/// that it is for.
hub::ModelPlace weights_of(const std::string& model);

}  // namespace tessera::estimate
