#include "checkpoint/training_state_reader.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/bounded_json.h"
#include "base/file.h"
#include "base/json_text.h"
#include "checkpoint/named_state.h"
#include "checkpoint/training_state.h"
#include "io/safetensors_reader.h"
#include "tensor/generators.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

/// Where the stored slices of each "kind/parameter" lie.
class StoredSlices {
 public:
  StoredSlices(const std::string& folder, const nlohmann::json& files) : folder_(folder) {
    for (const auto& file : files) {
      const std::string path = folder + "/" + file.get<std::string>();
      for (auto& tensor : io::list_safetensors(path)) {
        const std::string& name = tensor.info.name;
        const auto at = name.rfind('@');
        if (at == std::string::npos) throw CheckpointError(path + ": '" + name + "' has no offset", path);
        const std::string key = name.substr(0, at);
        slices_[key].push_back({std::stoll(name.substr(at + 1)), tensor.info.numel(), std::move(tensor)});
      }
    }
    for (auto& [name, list] : slices_) {
      std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
    }
  }

  /// Of one kind of one parameter that lies in one piece; 0: not there.
  std::int64_t numel(const std::string& kind, const std::string& parameter) const {
    const auto found = slices_.find(kind + "/" + parameter);
    return found == slices_.end() ? 0 : found->second.front().numel;
  }

  /// Elements [begin, + out.numel()) of the flattened values of one kind of a parameter, which has this shape.
  struct Wanted {
    const std::string &kind, &parameter;
    const std::vector<std::int64_t>& shape;
    std::int64_t begin;
    const at::Tensor& out;
  };

  /// What fills the tensor.
  void find(const Wanted& wanted, io::Readers readers, std::vector<io::FileRead>& reads) const {
    const auto& [kind, parameter, shape, begin, out] = wanted;
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
        reads.push_back(io::read_of(slice.tensor, position - slice.offset,
                                    out.narrow(0, position - begin, stop - position), readers));
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
    io::StoredTensor tensor;
  };
  std::string folder_;
  std::map<std::string, std::vector<Slice>> slices_;
};

nlohmann::json read_state_file(const std::string& folder) {
  const std::string file = folder + "/state.json";
  const nlohmann::json json = nlohmann::json::parse(bounded_json(read_file(file), file), nullptr, false);
  const auto format = json.is_object() && json.contains("format") ? json["format"] : nlohmann::json();
  if (format.is_number() && format != kTrainingStateVersion) {
    throw CheckpointError(fmt::format("'{}' has format version {}, this program reads version {}; resume with the "
                                      "program that wrote it",
                                      file, json_text(format), kTrainingStateVersion),
                          file);
  }
  if (!format.is_number() || !json.contains("files") || !json.contains("optimizer_steps") || !json.contains("random")) {
    throw CheckpointError("'" + file + "' is damaged; resume from an older checkpoint", file);
  }
  return json;
}

}  // namespace

TrainingStateReader::TrainingStateReader(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer,
                                         const std::string& folder)
    : model_(model), optimizer_(optimizer), state_(read_state_file(folder)) {
  const StoredSlices stored(folder, state_.at("files"));
  const auto readers = readers_of_slices(model);
  for (const auto& view : model.shards()) {
    if (view.trainable && view.local.numel() > 0)
      stored.find({kParametersKind, view.name, view.shape, view.offset, staging_.host_of(view.local)}, readers, reads_);
  }
  const int rank = model.group().rank();
  for (const auto& [name, buffer] : model.buffers()) {  // each rank's own, of another number of ranks rank 0's
    if (buffer.numel() == 0) continue;
    auto values = at::empty({buffer.numel()}, buffer.options().device(at::kCPU));
    stored.find({kBuffersKind, name_of_rank(name, same_ranks() ? rank : 0), buffer.sizes().vec(), 0, values},
                same_ranks() ? io::Readers::kOne : io::Readers::kSeveral, reads_);
    buffers_.push_back({buffer, std::move(values)});
  }
  if (optimizer != nullptr) {
    for (const auto& s : named_state(model, *optimizer))
      if (s.local.numel() > 0)
        stored.find({s.state, s.parameter, s.shape, s.offset, staging_.host_of(s.local)},
                    s.replicated ? io::Readers::kSeveral : readers, reads_);
    const auto generators = tensor::GeneratorStates::now();
    for (const auto& [device, now] : generators.states()) {
      const auto name = name_of_rank(device, rank);
      if (!same_ranks() || stored.numel(kGeneratorKind, name) != now.numel()) continue;  // older states have none
      stored.find({kGeneratorKind, name, now.sizes().vec(), 0, generators_[device] = now}, io::Readers::kOne, reads_);
    }
  }
  std::sort(reads_.begin(), reads_.end(), [](const io::FileRead& a, const io::FileRead& b) {
    return std::tie(a.from.file->path(), a.from.offset) < std::tie(b.from.file->path(), b.from.offset);
  });
}

bool TrainingStateReader::same_ranks() const {
  return state_.at("random").size() == static_cast<std::size_t>(model_.group().size());
}

void TrainingStateReader::finish() {
  const at::NoGradGuard no_grad;
  staging_.finish();
  for (const auto& [buffer, values] : buffers_) buffer.copy_(values.view(buffer.sizes()));
  model_.mark_updated();
  if (optimizer_ == nullptr) return;
  optimizer_->set_steps(state_.at("optimizer_steps").get<std::int64_t>());
  if (same_ranks()) {
    const auto& random = state_.at("random");
    const auto rank = static_cast<std::size_t>(model_.group().rank());
    tensor::random_state() = {random[rank][0].get<std::uint64_t>(), random[rank][1].get<std::uint64_t>(), {}};
    tensor::GeneratorStates(std::move(generators_)).restore();
  }
}

bool has_training_state(const std::string& folder) {
  try {
    const auto state = read_state_file(folder);
    for (const auto& file : state.at("files")) io::list_safetensors(folder + "/" + file.get<std::string>());
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void load_training_state(fsdp::FullyShardedDataParallel& model, optim::Optimizer* optimizer,
                         const std::string& folder) {
  TrainingStateReader reader(model, optimizer, folder);
  io::read_files(reader.reads());
  reader.finish();
}

}  // namespace tessera::checkpoint
