#pragma once
// What a model's folder holds beside weights, and what travels with them wherever a folder is written: configuration,
// tokenizer, chat templates, code, terms of use. Weights, their indexes and the state of runs stay behind; so do model
// cards (README.md), which speak of the model as it was.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "families/quantization.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::families {
class ConfigReader;
}

namespace tessera::checkpoint {

/// Folders; empty: nothing is taken from there. Files of several names count as one tokenizer, so they are never mixed.
struct ModelFiles {
  std::string model;      // config.json, generation_config.json, *.py, LICENSE ...; also a GGUF file: its config.json
  std::string tokenizer;  // all else; also a file of a tokenizer's folder
};

/// A special token of the tokenizer that a model was trained with.
struct TokenId {
  std::string key;             // "eos_token_id"
  std::int64_t id = -1;        // of the tokenizer; -1: it has none
  std::int64_t of_model = -1;  // what the model takes where config.json has no such key
};

/// How config.json describes a classifier.
struct ClassifierNames {
  std::string architecture = {};    // BertForSequenceClassification
  std::vector<std::string> labels;  // by class: id2label and label2id
  std::string problem_type;         // transformers'
  std::int64_t pad_token_id = -1;   // what rows were padded with; -1: as config.json says
};

/// An adapter's folder has the base's names nowhere, so they stand in a file beside it, with the keys of config.json.
inline constexpr const char* kClassifierFile = "classifier.json";
void write_classifier_file(const ClassifierNames& classifier, const std::string& adapter_folder);
/// Nothing: the folder has no such file.
std::optional<ClassifierNames> read_classifier_file(const std::string& adapter_folder);

/// What config.json says of weights that changed.
struct ConfigChanges {
  std::int64_t vocab_size = 0;                              // rows of the token tables; 0: as it is
  std::optional<at::ScalarType> dtype = {};                 // of the weights; unset: as it is
  std::optional<families::Quantization> quantization = {};  // weights are packed so; unset: as it is
  bool unpacked = false;  // weights that were packed are dense: no quantization_config
  bool untied = false;    // the output head has a matrix of its own
  /// config.json and generation_config.json name them, as transformers' Trainer aligns them: among the tokens that end
  /// a text those that were there stay.
  std::vector<TokenId> token_ids = {};
  std::optional<ClassifierNames> classifier = {};
};

/// Writes the files into `to`, which exists and may be one of the folders itself. CheckpointError when it cannot be
/// written.
void copy_model_files(const ModelFiles& from, const std::string& to, const ConfigChanges& changes = {});

/// True where the folder holds a tokenizer, not only templates or settings for one.
bool has_tokenizer(const std::string& folder);

/// The first of the folders that has one, else the last.
std::string tokenizer_among(const std::vector<std::string>& folders);

/// What `--dtype` and `--save_dtype` may say. auto: it is not chosen.
enum class WeightDtype { kAuto, kFloat32, kBFloat16, kFloat16 };
const std::vector<std::pair<std::string, WeightDtype>>& dtype_choices();
/// Unset for kAuto.
std::optional<at::ScalarType> chosen_dtype(WeightDtype dtype);
/// Of kAuto config.json's.
at::ScalarType chosen_dtype(WeightDtype dtype, const families::ConfigReader& config);

/// The tensor as a file of this dtype holds it; other than floating ones stay as they are. CheckpointError where
/// float16 cannot hold a value of it.
at::Tensor to_stored(const at::Tensor& tensor, at::ScalarType dtype, const std::string& name);
/// The dtype that to_stored() gives a tensor of `own` dtype.
at::ScalarType stored_as(at::ScalarType own, std::optional<at::ScalarType> chosen);
/// In which a parameter is saved: a packed one always in its own.
inline at::ScalarType stored_as(const fsdp::ShardView& view, std::optional<at::ScalarType> chosen) {
  return view.packed ? view.dtype : stored_as(view.dtype, chosen);
}

}  // namespace tessera::checkpoint
