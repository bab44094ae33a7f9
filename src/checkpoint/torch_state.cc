#include "checkpoint/torch_state.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/file.h"
#include "checkpoint/torch_files.h"
#include "checkpoint/training_state.h"
#include "io/dcp_folder.h"
#include "io/torch_file_writer.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

std::string name_of(const TorchName& name, const std::string& parameter) {
  return name ? name(parameter) : parameter;
}

/// A piece of a tensor on this rank.
struct LocalPiece {
  std::vector<std::string> path;  // ("model", name) or ("optimizer", "state", name, "exp_avg")
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;
  at::Tensor values;  // 1-D
};

using Pieces = std::vector<LocalPiece>;

Pieces model_pieces(const fsdp::FullyShardedDataParallel& model, const TorchName& name) {
  Pieces out;
  for (const auto& view : model.shards()) {
    const std::string in_file = name_of(name, view.name);
    if (!in_file.empty() && view.local.numel() > 0)
      out.push_back({{"model", in_file}, view.shape, view.offset, view.local});
  }
  return out;
}

Pieces optimizer_pieces(const fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer,
                        const TorchName& name) {
  const bool first = model.group().rank() == 0;
  Pieces out;
  for (const auto& s : optimizer.state()) {
    const std::string in_file = name_of(name, s.parameter);
    if (!in_file.empty() && s.local.numel() > s.repeated && (!s.replicated || first))
      out.push_back(
          {{"optimizer", "state", in_file, s.state}, s.shape, s.offset + s.repeated, s.local.slice(0, s.repeated)});
  }
  if (!first) return out;
  for (const auto& view : model.shards()) {
    const std::string in_file = name_of(name, view.name);
    if (!in_file.empty() && view.trainable)
      out.push_back({{"optimizer", "state", in_file, "step"},
                     {},
                     0,
                     at::full({1}, static_cast<double>(optimizer.steps()), at::kFloat)});
  }
  return out;
}

/// "lm_head.weight@4096", "state/lm_head.weight/exp_avg@4096"
std::string local_name(const LocalPiece& piece) {
  std::string out;
  for (std::size_t i = 1; i < piece.path.size(); ++i) out += (i > 1 ? "/" : "") + piece.path[i];
  return out + "@" + std::to_string(piece.offset);
}

/// A piece whose values a job reads.
struct KeptPiece {
  LocalPiece where;
  std::shared_ptr<const at::Tensor> values;
};

std::vector<KeptPiece> keep_pieces(Pieces pieces, SaveQueue& queue) {
  std::vector<KeptPiece> kept;
  for (auto& piece : pieces) {
    auto values = queue.snapshot(piece.values);
    piece.values.reset();
    kept.push_back({std::move(piece), std::move(values)});
  }
  return kept;
}

void push_local(Pieces pieces, const std::string& file, SaveQueue& queue) {
  queue.push([kept = keep_pieces(std::move(pieces), queue), file, &queue] {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& piece : kept) tensors.emplace_back(local_name(piece.where), *piece.values);
    const auto written = io::write_torch_file(file, tensors);
    queue.record({written.path, written.bytes, written.crc32c});
  });
}

/// The same bytes of the files under the other names.
void add_tied(const std::vector<TiedName>& tied, io::DcpMetadata& metadata) {
  const std::size_t own = metadata.tensors.size();
  for (const auto& other : tied)
    for (std::size_t i = 0; i < own; ++i) {
      if (metadata.tensors[i].path.back() != other.parameter) continue;
      io::DcpTensor copy = metadata.tensors[i];
      copy.path.back() = other.name;
      copy.name = fmt::format("{}", fmt::join(copy.path, "."));
      metadata.tensors.push_back(std::move(copy));
    }
}

struct TorchObject {
  std::vector<std::string> path;
  std::string pickle;
};

/// Where every rank's part will lie is known before it is written (to an archive with the same sizes), so that
/// .metadata needs no word from the other ranks' threads.
void push_dcp(comm::Communicator& group, Pieces pieces, std::vector<TorchObject> objects, const std::string& folder,
              bool writes, SaveQueue& queue, const std::vector<TiedName>& tied = {}) {
  const std::string name = fmt::format("__{}_0.distcp", group.rank());
  io::DcpLayout layout(name);
  for (const auto& p : pieces) layout.add(p.path, p.values.scalar_type(), p.shape, p.offset, p.values.numel());
  for (const auto& object : objects) layout.add_object(object.path, object.pickle);
  const auto parts = group.gather(writes ? io::write_dcp_metadata(layout.metadata()) : std::string(), 0);
  if (writes) {
    queue.push([=, &queue, kept = keep_pieces(std::move(pieces), queue), objects = std::move(objects)] {
      ensure_writable_folder(folder);
      io::DcpFileWriter writer(folder, name);
      for (const auto& [where, values] : kept) writer.write(where.path, where.shape, where.offset, *values);
      for (const auto& object : objects) writer.write_object(object.path, object.pickle);
      const auto written = writer.commit();
      queue.record({written.path, written.bytes, written.crc32c});
    });
  }
  if (group.rank() != 0) return;
  std::vector<io::DcpMetadata> all;
  for (const auto& part : parts)
    if (!part.empty()) all.push_back(io::parse_dcp_metadata(part, folder));
  io::DcpMetadata joined = io::joined_metadata(all);
  add_tied(tied, joined);
  queue.push([folder, text = io::write_dcp_metadata(joined)] {
    ensure_writable_folder(folder);
    write_file_atomically(folder + "/.metadata", text);
  });
}

/// A file of whole tensors, streamed by rank 0: the pickle refers to the storages in this order.
class FullFile {
 public:
  FullFile(std::string path, SaveQueue& queue) : path_(std::move(path)), queue_(queue) {}

  std::size_t announce(const std::string& key, std::uint64_t bytes) {
    index_.emplace(key, bytes_.size());
    bytes_.push_back(bytes);
    return bytes_.size() - 1;
  }
  void open(std::string pickle) {
    queue_.push([writer = writer_, path = path_, bytes = bytes_, pickle = std::move(pickle)] {
      *writer = std::make_unique<io::TorchFileWriter>(path, pickle, bytes);
    });
  }
  void write(const std::string& key, const at::Tensor& tensor) {
    const auto it = index_.find(key);
    if (it == index_.end()) return;
    queue_.push_with(tensor,
                     [writer = writer_, i = it->second](const at::Tensor& values) { (*writer)->write(i, values); });
  }
  void commit() {
    queue_.push([writer = writer_, &queue = queue_] {
      const auto written = (*writer)->commit();
      queue.record({written.path, written.bytes, written.crc32c});
    });
  }

 private:
  std::string path_;
  SaveQueue& queue_;
  std::map<std::string, std::size_t> index_;
  std::vector<std::uint64_t> bytes_;
  std::shared_ptr<std::unique_ptr<io::TorchFileWriter>> writer_ =
      std::make_shared<std::unique_ptr<io::TorchFileWriter>>();
};

std::uint64_t bytes_of(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  std::uint64_t n = c10::elementSize(dtype);
  for (const auto s : shape) n *= static_cast<std::uint64_t>(s);
  return n;
}

void push_full_model(fsdp::FullyShardedDataParallel& model, const std::string& path, const TorchName& name,
                     SaveQueue& queue, const std::vector<TiedName>& tied = {}) {
  const bool writes = model.group().rank() == 0;
  FullFile file(path, queue);
  if (writes) {
    std::vector<io::TensorInfo> infos;
    std::vector<std::size_t> storages;
    for (const auto& view : model.shards()) {
      const std::string in_file = name_of(name, view.name);
      if (in_file.empty()) continue;
      const auto storage = file.announce(in_file, bytes_of(view.shape, view.dtype));
      const auto add = [&](const std::string& key) {
        infos.push_back({key, view.dtype, view.shape, path});
        storages.push_back(storage);
      };
      add(in_file);
      for (const auto& other : tied)
        if (other.parameter == view.name) add(other.name);
    }
    file.open(io::state_dict_pickle(infos, storages));
  }
  model.visit_full(
      [&](const std::string& parameter, const at::Tensor& tensor) {
        if (writes) file.write(name_of(name, parameter), tensor);
      },
      [&](const std::string& parameter) { return !name_of(name, parameter).empty(); });
  if (writes) file.commit();
}

void push_full_optimizer(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer,
                         const TorchOptimizerOptions& options, const std::string& path, const TorchName& name,
                         SaveQueue& queue) {
  const bool writes = model.group().rank() == 0;
  FullFile file(path, queue);
  std::vector<std::string> steps;
  if (writes) {
    std::vector<TorchStateEntry> entries;
    const auto add = [&](const std::string& parameter, const std::string& state, at::ScalarType dtype,
                         const std::vector<std::int64_t>& shape) {
      const std::string key = parameter + "/" + state;
      if (!entries.empty() && entries.back().parameter == parameter && entries.back().state == state) return;
      entries.push_back({parameter, state, dtype, shape, file.announce(key, bytes_of(shape, dtype))});
      if (state == "step") steps.push_back(key);
    };
    std::string last;
    for (const auto& s : optimizer.state()) {
      const std::string in_file = name_of(name, s.parameter);
      if (in_file.empty()) continue;
      if (in_file != last) add(in_file, "step", at::kFloat, {});
      last = in_file;
      add(in_file, s.state, s.local.scalar_type(), s.shape);
    }
    file.open(optimizer_pickle(entries, torch_param_groups(model, options, name)));
    for (const auto& key : steps) file.write(key, at::full({}, static_cast<double>(optimizer.steps()), at::kFloat));
  }
  optim::visit_full_state(optimizer, *model.shard_group(),
                          [&](const std::string& parameter, const std::string& state, const at::Tensor& tensor) {
                            if (writes) file.write(name_of(name, parameter) + "/" + state, tensor);
                          });
  if (writes) file.commit();
}

}  // namespace

std::vector<TorchParamGroup> torch_param_groups(const fsdp::FullyShardedDataParallel& model,
                                                const TorchOptimizerOptions& options, const TorchName& name) {
  TorchParamGroup decayed{options, {}}, kept{options, {}};
  kept.options.weight_decay = 0;
  for (const auto& slice : fsdp::parameter_slices(model)) {
    const std::string in_file = name_of(name, slice.name);
    if (in_file.empty()) continue;
    const bool decays = !options.decays || options.decays(slice.name);
    (decays ? decayed : kept).parameters.push_back(in_file);
  }
  std::vector<TorchParamGroup> out{decayed};
  if (!kept.parameters.empty()) out.push_back(kept);
  return out;
}

void push_torch_model(fsdp::FullyShardedDataParallel& model, const std::string& folder, TorchStateType type,
                      const TorchName& name, SaveQueue& queue, const std::vector<TiedName>& tied) {
  comm::Communicator& group = model.group();
  const bool writes = writes_slices(model);
  switch (type) {
    case TorchStateType::kFull:
      return push_full_model(model, folder + "/pytorch_model_fsdp.bin", name, queue, tied);
    case TorchStateType::kSharded:
      return push_dcp(group, model_pieces(model, name), {}, folder + "/pytorch_model_fsdp_0", writes, queue, tied);
    case TorchStateType::kLocal:
      if (writes)
        push_local(model_pieces(model, name), fmt::format("{}/pytorch_model_fsdp_rank{}.bin", folder, group.rank()),
                   queue);
      return;
  }
}

void save_torch_model(fsdp::FullyShardedDataParallel& model, const std::string& file,
                      const std::vector<TiedName>& tied) {
  SaveQueue now;
  push_full_model(model, file, nullptr, now, tied);
  throw_failure_of_any(model.group(), now.take_failure(), file);
}

void push_torch_optimizer(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer,
                          const TorchOptimizerOptions& options, const std::string& folder, TorchStateType type,
                          const TorchName& name, SaveQueue& queue) {
  comm::Communicator& group = model.group();
  model.finish_step();
  const bool writes = writes_slices(model);
  if (type == TorchStateType::kFull)
    return push_full_optimizer(model, optimizer, options, folder + "/optimizer.bin", name, queue);
  Pieces pieces = optimizer_pieces(model, optimizer, name);
  if (type == TorchStateType::kLocal) {
    if (writes) push_local(std::move(pieces), fmt::format("{}/optimizer_rank{}.bin", folder, group.rank()), queue);
    return;
  }
  std::vector<TorchObject> objects;
  if (group.rank() == 0) {
    const auto groups = torch_param_groups(model, options, name);
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (auto& [key, pickle] : group_pickles(groups[g]))
        objects.push_back({{"optimizer", "param_groups", std::to_string(g), key}, pickle});
  }
  push_dcp(group, std::move(pieces), std::move(objects), folder + "/optimizer_0", writes, queue);
}

}  // namespace tessera::checkpoint
