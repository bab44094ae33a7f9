#include "checkpoint/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_text.h"
#include "checkpoint/named_state.h"
#include "checkpoint/save_slices.h"
#include "tensor/generators.h"
#include "tensor/offload_store.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::checkpoint {
namespace {

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;
using Snapshots = std::vector<std::pair<std::string, std::shared_ptr<const at::Tensor>>>;

/// "exp_avg/encoder.block.0.layer.0.SelfAttention.q.weight@4096"
std::string slice_name(const std::string& kind, const std::string& parameter, std::int64_t offset) {
  return kind + "/" + parameter + "@" + std::to_string(offset);
}

/// What this rank writes; of what every rank holds whole, rank 0 does.
Tensors slices(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer) {
  Tensors result;
  for (const auto& view : model.shards())
    if (view.trainable && view.local.numel() > 0)
      result.emplace_back(slice_name(kParametersKind, view.name, view.offset), view.local);
  for (const auto& s : named_state(model, optimizer))
    if (s.local.numel() > s.repeated && (!s.replicated || model.group().rank() == 0))
      result.emplace_back(slice_name(s.state, s.parameter, s.offset + s.repeated), s.local.slice(0, s.repeated));
  return result;
}

/// What is this rank's own: its buffers, and where libtorch's generators are.
Tensors own_state(const fsdp::FullyShardedDataParallel& model) {
  Tensors result;
  const int rank = model.group().rank();
  for (const auto& buffer : model.buffers())
    if (buffer.tensor.numel() > 0)
      result.emplace_back(slice_name(kBuffersKind, name_of_rank(buffer.name, rank), 0), values_of(buffer));
  const auto now = tensor::GeneratorStates::now();
  for (const auto& [device, state] : now.states())
    result.emplace_back(slice_name(kGeneratorKind, name_of_rank(device, rank), 0), state);
  return result;
}

std::string file_of_rank(int rank, int world_size) {
  return fmt::format("rank_{:05}_of_{:05}.safetensors", rank, world_size);
}

/// What is common: the ranks' files, and their random streams, gathered.
nlohmann::json common_state(comm::Communicator& group, const optim::Optimizer& optimizer) {
  const auto stream = tensor::random_state();
  const nlohmann::json mine = {stream.seed, stream.position};
  nlohmann::json files = nlohmann::json::array(), random = nlohmann::json::array();
  for (const auto& bytes : group.all_gather_objects(json_text(mine))) {
    files.push_back(file_of_rank(static_cast<int>(random.size()), group.size()));
    random.push_back(nlohmann::json::parse(bytes));
  }
  return {{"format", kTrainingStateVersion},
          {"world_size", group.size()},
          {"optimizer_steps", optimizer.steps()},
          {"files", files},
          {"random", random}};
}

}  // namespace

io::Readers readers_of_slices(const fsdp::FullyShardedDataParallel& model) {
  return model.shard_group()->size() == model.group().size() ? io::Readers::kOne : io::Readers::kSeveral;
}

bool writes_slices(const fsdp::FullyShardedDataParallel& model) {
  const auto replica = model.shard_group()->all_gather_objects(std::to_string(model.group().rank()));
  return std::find(replica.begin(), replica.end(), "0") != replica.end();
}

void push_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer, const std::string& folder,
                         SaveQueue& queue) {
  comm::Communicator& group = model.group();
  model.finish_step();
  const nlohmann::json common = common_state(group, optimizer);
  Snapshots mine;
  if (writes_slices(model))
    for (const auto& [name, tensor] : slices(model, optimizer)) mine.emplace_back(name, queue.snapshot(tensor));
  queue.push([mine = std::move(mine), tensors = own_state(model), folder,
              name = file_of_rank(group.rank(), group.size()), store = model.offload_store(), &queue]() mutable {
    ensure_writable_folder(folder);
    for (const auto& [key, tensor] : mine) tensors.emplace_back(key, *tensor);
    const auto evict = [&](const at::Tensor& tensor) {
      if (store) store->evict(tensor);
    };
    const auto written = io::write_safetensors(folder + "/" + name, tensors, {{"format", "pt"}}, evict);
    queue.record({written.path, written.bytes, written.crc32c});
  });
  if (group.rank() == 0) {
    queue.push([folder, text = json_text(common, 2) + "\n"] {
      ensure_writable_folder(folder);
      write_file_atomically(folder + "/state.json", text);
    });
  }
}

void save_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer,
                         const std::string& folder) {
  SaveQueue now;
  push_training_state(model, optimizer, folder, now);
  throw_failure_of_any(model.group(), now.take_failure(), folder);
}

std::string name_of_rank(const std::string& name, int rank) {
  return fmt::format("{}.{}", name, rank);
}

std::string training_state_folder(const std::string& checkpoint) {
  return checkpoint + "/training_state";
}

}  // namespace tessera::checkpoint
