#pragma once
// Where a model named on the command line lies.
#include <string>

namespace tessera::tasks {

/// A folder with config.json, a GGUF file or a folder with one; else a snapshot of that name in the Hugging Face cache
/// (${HF_HUB_CACHE}, ${HF_HOME}/hub or
/// ~/.cache/huggingface/hub). DataError says what was looked for. Nothing is downloaded.
std::string find_model_folder(const std::string& name_or_path);

}  // namespace tessera::tasks
