#include "checkpoint/open_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/open_file.h"
#include "checkpoint/torch_state.h"
#include "io/dcp_folder.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

OpenedState opened(std::shared_ptr<io::TensorSource> source, std::string found) {
  const auto& infos = source->tensors();
  const bool adapter = !infos.empty() && std::all_of(infos.begin(), infos.end(), [](const io::TensorInfo& info) {
    return info.name.starts_with("base_model.") || info.name.find(".lora_") != std::string::npos ||
           info.name == "prompt_embeddings";
  });
  return {adapter ? OpenedState::Kind::kAdapter : OpenedState::Kind::kModel, std::move(source), std::move(found)};
}

}  // namespace

OpenedState open_state(const std::string& path) {
  if (!is_there(path))
    throw DataError(fmt::format("'{}' does not exist; expected a checkpoint, a model's folder or a weight file", path),
                    path);
  if (!fs::is_directory(path)) return opened(io::open_weights(path), path);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                           "pytorch_model.bin.index.json", "adapter_model.safetensors", "adapter_model.bin"}) {
    const std::string file = path + "/" + name;
    if (is_there(file)) return opened(io::open_weights(file), file);
  }
  if (auto source = open_torch_model(path)) return opened(std::move(source), path);
  if (io::is_dcp_folder(path)) return opened(io::open_dcp(path), path);
  refuse_rank_files(path);
  throw DataError(
      fmt::format("'{}' holds no weights; looked for model.safetensors, pytorch_model.bin (or their indexes), "
                  "adapter_model.safetensors, pytorch_model_fsdp.bin, pytorch_model_fsdp_0/ and .metadata",
                  path),
      path);
}

}  // namespace tessera::checkpoint
