#include "checkpoint/training_state.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "io/tensor_source.h"
#include "tensor/rng.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

using Json = nlohmann::json;
using Tensors = std::vector<std::pair<std::string, at::Tensor>>;
using Snapshots = std::vector<std::pair<std::string, std::shared_ptr<const at::Tensor>>>;

constexpr const char* kParameters = "parameters";
constexpr int kFormatVersion = 2;

/// "exp_avg/encoder.block.0.layer.0.SelfAttention.q.weight@4096"
std::string slice_name(const std::string& kind, const std::string& parameter, std::int64_t offset) {
  return kind + "/" + parameter + "@" + std::to_string(offset);
}

/// What this rank writes; of what every rank holds whole, rank 0 does.
Tensors slices(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer) {
  Tensors result;
  for (const auto& view : model.shards())
    if (view.trainable && view.local.numel() > 0)
      result.emplace_back(slice_name(kParameters, view.name, view.offset), view.local);
  for (const auto& s : optimizer.state())
    if (s.local.numel() > 0 && (!s.replicated || model.group().rank() == 0))
      result.emplace_back(slice_name(s.state, s.parameter, s.offset), s.local);
  return result;
}

/// Where the stored slices of each "kind/parameter" lie.
class StoredSlices {
 public:
  StoredSlices(const std::string& folder, const Json& files) : folder_(folder) {
    for (const auto& file : files) {
      const std::string path = folder + "/" + file.get<std::string>();
      sources_.push_back(io::open_safetensors(path));
      for (const auto& info : sources_.back()->tensors()) {
        const auto at = info.name.rfind('@');
        if (at == std::string::npos) throw CheckpointError(path + ": '" + info.name + "' has no offset", path);
        slices_[info.name.substr(0, at)].push_back(
            {std::stoll(info.name.substr(at + 1)), info.numel(), info.name, sources_.back().get()});
      }
    }
    for (auto& [name, list] : slices_) {
      std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
    }
  }

  /// Elements [begin, + out.numel()) of the parameter's flattened values of this kind, which has this shape as a whole.
  void read(const std::string& kind, const std::string& parameter, const std::vector<std::int64_t>& shape,
            std::int64_t begin, const at::Tensor& out) const {
    std::int64_t position = begin;
    const std::int64_t end = begin + out.numel();
    const auto found = slices_.find(kind + "/" + parameter);
    if (found != slices_.end()) {
      const auto& last = found->second.back();
      const std::int64_t stored = last.offset + last.numel, expected = c10::multiply_integers(shape);
      if (stored > expected) {
        throw CheckpointError(fmt::format("'{}' has {} elements of '{}' ({}), the model has {}; the folder belongs to "
                                          "another model or another adapter",
                                          folder_, stored, parameter, kind, expected),
                              folder_);
      }
      for (const auto& slice : found->second) {
        if (slice.offset > position) break;
        const std::int64_t stop = std::min(end, slice.offset + slice.numel);
        if (stop <= position) continue;
        slice.source->read(slice.name, position - slice.offset, out.narrow(0, position - begin, stop - position));
        position = stop;
      }
    }
    if (position < end) {
      throw CheckpointError(
          fmt::format("'{}' lacks {} of '{}' from element {} on; the folder belongs to another model, "
                      "or to another choice of what is trained",
                      folder_, kind, parameter, position),
          folder_);
    }
  }

 private:
  struct Slice {
    std::int64_t offset, numel;
    std::string name;
    const io::TensorSource* source;
  };
  std::string folder_;
  std::vector<std::shared_ptr<io::TensorSource>> sources_;
  std::map<std::string, std::vector<Slice>> slices_;
};

Json read_state_file(const std::string& folder) {
  const std::string file = folder + "/state.json";
  const Json json = Json::parse(read_file(file), nullptr, false);
  const auto format = json.is_object() && json.contains("format") ? json["format"] : Json();
  if (format.is_number() && format != kFormatVersion) {
    throw CheckpointError(fmt::format("'{}' has format version {}, this program reads version {}; resume with the "
                                      "program that wrote it",
                                      file, format.dump(), kFormatVersion),
                          file);
  }
  if (!format.is_number() || !json.contains("files") || !json.contains("optimizer_steps") || !json.contains("random")) {
    throw CheckpointError("'" + file + "' is damaged; resume from an older checkpoint", file);
  }
  return json;
}

void load_optimizer(optim::Optimizer& optimizer, const StoredSlices& stored, std::int64_t steps) {
  for (const auto& s : optimizer.state())
    if (s.local.numel() > 0) stored.read(s.state, s.parameter, s.shape, s.offset, s.local);
  optimizer.set_steps(steps);
}

std::string file_of_rank(int rank, int world_size) {
  return fmt::format("rank_{:05}_of_{:05}.safetensors", rank, world_size);
}

/// What is common, gathered: the random streams of all ranks, and which of them write.
Json common_state(comm::Communicator& group, const optim::Optimizer& optimizer, bool writes) {
  const auto stream = tensor::random_state();
  const Json mine = {{"writes", writes}, {"random", {stream.seed, stream.position}}};
  Json files = Json::array(), random = Json::array();
  int rank = 0;
  for (const auto& bytes : group.all_gather_objects(mine.dump())) {
    const Json one = Json::parse(bytes);
    if (one["writes"]) files.push_back(file_of_rank(rank, group.size()));
    random.push_back(one["random"]);
    ++rank;
  }
  return {{"format", kFormatVersion},
          {"world_size", group.size()},
          {"optimizer_steps", optimizer.steps()},
          {"files", files},
          {"random", random}};
}

}  // namespace

bool writes_slices(const fsdp::FullyShardedDataParallel& model) {
  const auto replica = model.shard_group()->all_gather_objects(std::to_string(model.group().rank()));
  return std::find(replica.begin(), replica.end(), "0") != replica.end();
}

void push_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer& optimizer, const std::string& folder,
                         SaveQueue& queue) {
  comm::Communicator& group = model.group();
  const bool writes = writes_slices(model);
  const Json common = common_state(group, optimizer, writes);
  if (writes) {
    Snapshots mine;
    for (const auto& [name, tensor] : slices(model, optimizer)) mine.emplace_back(name, queue.snapshot(tensor));
    queue.push([mine = std::move(mine), folder, name = file_of_rank(group.rank(), group.size()), &queue] {
      ensure_writable_folder(folder);
      Tensors tensors;
      for (const auto& [key, tensor] : mine) tensors.emplace_back(key, *tensor);
      const auto written = io::write_safetensors(folder + "/" + name, tensors);
      queue.record({written.path, written.bytes, written.crc32c});
    });
  }
  if (group.rank() == 0) {
    queue.push([folder, text = common.dump(2) + "\n"] {
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

std::string training_state_folder(const std::string& checkpoint) {
  return checkpoint + "/training_state";
}

bool has_training_state(const std::string& folder) {
  try {
    const Json state = read_state_file(folder);
    for (const auto& file : state.at("files")) io::open_safetensors(folder + "/" + file.get<std::string>());
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void load_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer,
                         const std::string& folder) {
  const Json state = read_state_file(folder);
  const StoredSlices stored(folder, state.at("files"));
  for (const auto& view : model.shards()) {
    if (view.trainable && view.local.numel() > 0)
      stored.read(kParameters, view.name, view.shape, view.offset, view.local);
  }
  model.mark_updated();
  if (optimizer == nullptr) return;
  load_optimizer(*optimizer, stored, state.at("optimizer_steps").get<std::int64_t>());
  const auto& random = state.at("random");
  const auto rank = static_cast<std::size_t>(model.group().rank());
  if (random.size() == static_cast<std::size_t>(model.group().size())) {
    tensor::random_state() = {random[rank][0].get<std::uint64_t>(), random[rank][1].get<std::uint64_t>(), {}};
  }
}

}  // namespace tessera::checkpoint
