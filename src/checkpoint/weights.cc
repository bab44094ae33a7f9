#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "base/file.h"
#include "checkpoint/save_queue.h"
#include "checkpoint/save_slices.h"
#include "checkpoint/training_state.h"
#include "tensor/staging.h"
#include "tessera/base/error.h"
#include "tessera/checkpoint/state.h"
#include "tessera/io/tensor_source.h"

namespace tessera::checkpoint {

namespace {

/// Where ranks cannot write one file together: through rank 0, a unit at a time.
void save_gathered(fsdp::FullyShardedDataParallel& model, const std::string& file, SaveQueue& queue) {
  std::unique_ptr<io::SafetensorsWriter> writer;
  const bool writes = model.group().rank() == 0;
  if (writes) {
    queue.push([&] {
      const auto folder = std::filesystem::path(file).parent_path().string();
      if (!folder.empty()) ensure_writable_folder(folder);
      std::vector<io::TensorInfo> infos;
      for (const auto& view : model.shards())
        infos.push_back({.name = view.name, .dtype = view.dtype, .shape = view.shape, .file = file});
      for (const auto& buffer : model.buffers())
        infos.push_back({.name = buffer.name,
                         .dtype = buffer.tensor.scalar_type(),
                         .shape = buffer.tensor.sizes().vec(),
                         .file = file});
      writer = std::make_unique<io::SafetensorsWriter>(file, std::move(infos));
    });
  }
  model.visit_full([&](const std::string& name, const at::Tensor& tensor) {
    if (writes) queue.push([&] { writer->write(name, tensor); });
  });
  if (!writes) return;
  for (const auto& buffer : model.buffers())
    queue.push([&] { writer->write(buffer.name, values_of(buffer).view(buffer.tensor.sizes())); });
  queue.push([&] { writer->commit(); });
}

}  // namespace

void save_weights(fsdp::FullyShardedDataParallel& model, const std::string& file) {
  SaveQueue queue;  // keeps a failure until all ranks have finished
  if (writes_together(model))
    save_slices(model, file, [](const std::string& parameter) { return std::vector{parameter}; }, queue);
  else
    save_gathered(model, file, queue);
  throw_failure_of_any(model.group(), queue.take_failure(), file);
}

void load_weights(fsdp::FullyShardedDataParallel& model, const std::string& path) {
  const auto source = io::open_weights(path);
  const auto check = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const auto* stored = source->find(name);
    if (!stored || stored->shape != shape)
      throw DataError(fmt::format("'{}' {} '{}'{}; the file belongs to another model", path,
                                  stored ? "has another shape of" : "lacks", name,
                                  stored ? fmt::format(": [{}], the model has [{}]", fmt::join(stored->shape, ", "),
                                                       fmt::join(shape, ", "))
                                         : ""),
                      path);
  };
  for (const auto& view : model.shards()) check(view.name, view.shape);
  for (const auto& buffer : model.buffers()) check(buffer.name, buffer.tensor.sizes().vec());
  tensor::Staging staging;
  std::vector<io::SliceRead> slices;
  for (const auto& view : model.shards())
    if (view.local.numel() > 0) slices.push_back({view.name, view.offset, staging.host_of(view.local)});
  source->read_all(slices, readers_of_slices(model));
  staging.finish();
  {
    const at::NoGradGuard no_grad;
    for (const auto& buffer : model.buffers()) buffer.tensor.copy_(io::read_tensor(*source, buffer.name));
  }
  model.mark_updated();
}

}  // namespace tessera::checkpoint
