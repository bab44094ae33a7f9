#include <filesystem>

#include "base/file.h"
#include "checkpoint/save_queue.h"
#include "io/tensor_source.h"
#include "tessera/checkpoint/state.h"

namespace tessera::checkpoint {

void save_weights(fsdp::FullyShardedDataParallel& model, const std::string& file) {
  SaveQueue queue;  // keeps a failure until all ranks have finished
  std::unique_ptr<io::SafetensorsWriter> writer;
  const bool writes = model.group().rank() == 0;
  if (writes) {
    queue.push([&] {
      const auto folder = std::filesystem::path(file).parent_path().string();
      if (!folder.empty()) ensure_writable_folder(folder);
      std::vector<io::TensorInfo> infos;
      for (const auto& view : model.shards())
        infos.push_back({.name = view.name, .dtype = view.dtype, .shape = view.shape, .file = file});
      writer = std::make_unique<io::SafetensorsWriter>(file, std::move(infos));
    });
  }
  model.visit_full([&](const std::string& name, const at::Tensor& tensor) {
    if (writes) queue.push([&] { writer->write(name, tensor); });
  });
  if (writes) queue.push([&] { writer->commit(); });
  throw_failure_of_any(model.group(), queue.take_failure(), file);
}

std::shared_ptr<const io::TensorSource> open_weights(const std::string& path) {
  return io::open_weights(path);
}

}  // namespace tessera::checkpoint
