#pragma once
// Where a model named on the command line lies.
#include <string>

namespace tessera::families {

/// `adapter` is empty where the name is that of a model itself.
struct ModelPlace {
  std::string folder;   // config.json and weights, or a GGUF file
  std::string adapter;  // a folder with adapter_config.json
};

/// A folder with config.json, a GGUF file or a folder with one; else a snapshot of that name in the Hugging Face cache
/// (${HF_HUB_CACHE}, ${HF_HOME}/hub or ~/.cache/huggingface/hub). DataError says what was looked for. Nothing is
/// downloaded.
std::string find_model_folder(const std::string& name_or_path);

/// The same; an adapter's folder stands for the base model that it names, with itself.
ModelPlace find_model(const std::string& name_or_path);

/// base_model_name_or_path of adapter_config.json; "": it names none.
std::string base_name_of(const std::string& adapter_folder);

}  // namespace tessera::families
