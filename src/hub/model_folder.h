#pragma once
// Where a model named on the command line lies: the one way from names to folders.
#include <string>

namespace tessera::hub {

/// `adapter` is empty where the name is that of a model itself.
struct ModelPlace {
  std::string folder;   // config.json and weights, or a GGUF file
  std::string adapter;  // a folder with adapter_config.json
};

/// What of a repository is downloaded.
enum class ModelParts {
  kAll,
  kSettings,  // without weights: config.json, the tokenizer and its templates
};

/// A folder with config.json, a GGUF file or a folder with one; else, by the name org/name[@revision], a repository on
/// the Hub, whose files come into Hugging Face's cache (fetch.h). DataError says what was looked for.
std::string find_model_folder(const std::string& name_or_path);

/// The same; an adapter's folder stands for the base model that it names, with itself.
ModelPlace find_model(const std::string& name_or_path, ModelParts parts = ModelParts::kAll);

/// The model's folder that an adapter's folder names. DataError and ConfigError say which flags name another:
/// `instead`.
std::string find_base(const std::string& adapter, const std::string& instead, ModelParts parts = ModelParts::kAll);

/// An adapter's folder, or a repository with one. An empty name stays empty.
std::string find_adapter(const std::string& name_or_path);

/// A folder or file, or a repository's settings. An empty name stays empty.
std::string find_settings(const std::string& name_or_path);

}  // namespace tessera::hub
