#include "checkpoint/save_slices.h"

#include <ATen/ops/clone.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/folder.h"
#include "checkpoint/model_files.h"
#include "checkpoint/training_state.h"
#include "io/output_file.h"
#include "io/safetensors_layout.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

struct NamedSlice {
  std::string name;  // in the file
  std::int64_t begin = 0;
  std::shared_ptr<const at::Tensor> values;  // 1-D
};

/// Runs later, perhaps, and frees each slice as it is written.
void write_slices(const std::string& file, const std::vector<io::TensorInfo>& infos, std::vector<NamedSlice>& slices,
                  bool with_header, const tensor::OffloadStore* store,
                  const std::function<void(const io::WrittenPart&)>& on_part) {
  ensure_writable_folder(parent_folder(file));
  const io::SafetensorsLayout layout(file, infos);
  io::OutputFile out(file, io::OutputFile::Writers::kSeveral);
  out.resize(layout.bytes);
  if (with_header) out.write(0, layout.header.data(), layout.header.size());
  std::sort(slices.begin(), slices.end(), [&](const NamedSlice& a, const NamedSlice& b) {
    return layout.places.at(a.name).offset < layout.places.at(b.name).offset;
  });
  for (auto& slice : slices) {
    const auto& place = layout.places.at(slice.name);
    const at::Tensor values = to_stored(*slice.values, place.info.dtype, slice.name);
    TESSERA_CHECK(values.is_contiguous() && values.is_cpu() && values.scalar_type() == place.info.dtype,
                  "'" + slice.name + "' must be contiguous, on the CPU and of the announced dtype");
    out.write(place.offset + static_cast<std::uint64_t>(slice.begin) * values.element_size(), values.const_data_ptr(),
              values.nbytes());
    if (store) store->evict(*slice.values);
    slice.values = nullptr;
  }
  for (const auto& part : out.flush()) on_part(part);
}

void rename_durably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw CheckpointError(fmt::format("cannot rename '{}' to '{}': {}", from, to, std::strerror(errno)), to);
  flush_folder(parent_folder(to));
}

}  // namespace

at::Tensor values_of(const fsdp::NamedBuffer& buffer) {
  return buffer.tensor.detach().to(at::kCPU).clone(at::MemoryFormat::Contiguous).view(-1);
}

bool writes_together(const fsdp::FullyShardedDataParallel& model) {
  return model.group().backend() != "hosts";
}

void save_slices(fsdp::FullyShardedDataParallel& model, const std::string& file, const NamesInFile& names,
                 SaveQueue& queue, std::optional<at::ScalarType> dtype) {
  comm::Communicator& group = model.group();
  const bool first = group.rank() == 0;
  // Of a run that was killed it goes at the next write by one rank, too (base/temporary_file.h).
  const std::string path = queue.in_background() ? file : file + ".tmp.0.0";
  if (writes_slices(model)) {
    std::vector<io::TensorInfo> infos;
    const auto slices = std::make_shared<std::vector<NamedSlice>>();
    for (const auto& view : model.shards()) {
      for (const auto& name : names(view.name)) {
        infos.push_back({.name = name, .dtype = stored_as(view, dtype), .shape = view.shape, .file = file});
        if (view.local.numel() > 0) slices->push_back({name, view.offset, queue.snapshot(view.local)});
      }
    }
    for (const auto& buffer : model.buffers()) {
      for (const auto& name : names(buffer.name)) {
        infos.push_back(
            {.name = name, .dtype = buffer.tensor.scalar_type(), .shape = buffer.tensor.sizes().vec(), .file = file});
        if (first) slices->push_back({name, 0, std::make_shared<const at::Tensor>(values_of(buffer))});
      }
    }
    queue.push([=, &queue, infos = std::move(infos), store = model.offload_store()] {
      write_slices(path, infos, *slices, first, store.get(), [&](const io::WrittenPart& part) {
        queue.record(
            {file, static_cast<std::int64_t>(part.bytes), part.crc32c, static_cast<std::int64_t>(part.offset)});
      });
    });
  }
  if (queue.in_background()) return;
  const auto failed = group.all_gather_objects(queue.failed() ? "failed" : "");
  if (!first) return;
  if (std::all_of(failed.begin(), failed.end(), [](const auto& word) { return word.empty(); })) {
    queue.push([=] { rename_durably(path, file); });
  } else {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
}

}  // namespace tessera::checkpoint
