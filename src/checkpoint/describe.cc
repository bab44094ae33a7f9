#include "checkpoint/describe.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>

#include "base/bounded_json.h"
#include "base/file.h"
#include "base/open_file.h"
#include "base/plain_reason.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/training_state.h"
#include "families/base_name.h"
#include "io/dcp_folder.h"
#include "io/gguf.h"
#include "io/safetensors_reader.h"
#include "io/torch_file.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using PartJson = nlohmann::ordered_json;
using Infos = std::vector<io::TensorInfo>;

/// A tensor as it is stored.
struct Stored {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::int64_t elements = 0, bytes = 0;
};

Stored stored(const io::TensorInfo& info) {
  return {info.name, c10::toString(info.dtype), info.shape, info.numel(), info.nbytes()};
}

std::vector<Stored> stored(const Infos& infos) {
  std::vector<Stored> out;
  for (const auto& info : infos) out.push_back(stored(info));
  return out;
}

std::vector<Stored> stored(const std::vector<io::StoredTensor>& tensors) {
  std::vector<Stored> out;
  for (const auto& t : tensors) out.push_back(stored(t.info));
  return out;
}

/// What the tensors are, and how many; or why they cannot be read.
PartJson part(const std::string& name, const std::string& kind, const std::function<std::vector<Stored>()>& list) {
  PartJson out = {{"name", name}, {"kind", kind}};
  try {
    std::int64_t elements = 0, bytes = 0;
    std::map<std::string, std::int64_t> dtypes;
    PartJson tensors = PartJson::array();
    for (const auto& t : list()) {
      tensors.push_back({{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}});
      elements += t.elements;
      bytes += t.bytes;
      dtypes[t.dtype] += t.elements;
    }
    out["elements"] = elements;
    out["bytes"] = bytes;
    out["dtypes"] = dtypes;
    out["tensors"] = std::move(tensors);
  } catch (const std::exception& e) {
    out["error"] = plain_reason(e);
  }
  return out;
}

/// With the types' own names: "Q4_K".
std::vector<Stored> list_gguf(const std::string& path) {
  const auto file = io::open_gguf(path);
  auto out = stored(file->tensors());
  for (auto& t : out) t.dtype = file->type_of(t.name);
  return out;
}

std::vector<Stored> list_any(const std::string& path) {
  const auto kind = fs::path(path).extension();
  if (kind == ".safetensors") return stored(io::list_safetensors(path));
  if (kind == ".gguf") return list_gguf(path);
  if (kind == ".json") return stored(io::open_weights(path)->tensors());
  return stored(io::list_nested_torch_file(path));
}

/// The tensors of a training state, whole: "exp_avg/<parameter>" with the elements of all ranks' slices.
std::vector<Stored> list_training_state(const std::string& folder) {
  std::map<std::string, io::TensorInfo> joined;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    for (const auto& t : io::list_safetensors(entry.path().string())) {
      auto& whole = joined[t.info.name.substr(0, t.info.name.rfind('@'))];
      const std::int64_t before = whole.shape.empty() ? 0 : whole.shape[0];
      whole.dtype = t.info.dtype;
      whole.shape = {before + t.info.numel()};
    }
  }
  std::vector<Stored> out;
  for (auto& [name, info] : joined) {
    info.name = name;
    out.push_back(stored(info));
  }
  return out;
}

struct KnownFile {
  const char *name, *kind;
};
constexpr KnownFile kKnownFiles[] = {{"model.safetensors", "Hugging Face weights"},
                                     {"model.safetensors.index.json", "Hugging Face weights, in several files"},
                                     {"pytorch_model.bin", "Hugging Face weights (torch file)"},
                                     {"pytorch_model.bin.index.json", "Hugging Face weights, in several torch files"},
                                     {"adapter_model.safetensors", "PEFT adapter"},
                                     {"adapter_model.bin", "PEFT adapter (torch file)"},
                                     {"pytorch_model_fsdp.bin", "Accelerate FSDP model, FULL_STATE_DICT"},
                                     {"optimizer.bin", "Accelerate optimizer, FULL_STATE_DICT"},
                                     {"optimizer.pt", "optimizer of transformers' Trainer"}};

/// Accelerate numbers the models of sharded files, not of LOCAL ones.
const char* rank_part_kind(const std::string& name) {
  return name.find("_0_rank") != std::string::npos ? "part of one rank (SHARDED_STATE_DICT with use_dcp=False)"
                                                   : "part of one rank (LOCAL_STATE_DICT)";
}

PartJson parts_of_folder(const std::string& folder) {
  PartJson parts = PartJson::array();
  for (const auto& known : kKnownFiles) {
    const std::string path = folder + "/" + known.name;
    std::error_code none;
    if (fs::exists(fs::symlink_status(path, none)))  // a link that leads nowhere is a part that cannot be read
      parts.push_back(part(known.name, known.kind, [&] { return list_any(path); }));
  }
  if (is_there(training_state_folder(folder)))
    parts.push_back(part("training_state/", "state of a run of tessera, sharded", [&] {
      if (!is_there(folder + "/" + kManifestName))
        throw DataError(
            fmt::format("{}: {} is missing; without it nobody knows whether the checkpoint is whole, and no "
                        "run goes on from it",
                        folder, kManifestName),
            folder);
      return list_training_state(training_state_folder(folder));
    }));
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  for (const auto& entry : entries) {
    const std::string name = entry.filename().string(), path = entry.string();
    if (io::is_dcp_folder(path))
      parts.push_back(part(name + "/", "torch.distributed.checkpoint folder (SHARDED_STATE_DICT)",
                           [&] { return stored(io::open_dcp(path)->tensors()); }));
    if (name.find("_rank") != std::string::npos && name.ends_with(".bin"))
      parts.push_back(part(name, rank_part_kind(name), [&] { return list_any(path); }));
    if (name.ends_with(".gguf")) parts.push_back(part(name, "GGUF weights", [&] { return list_any(path); }));
  }
  if (io::is_dcp_folder(folder))
    parts.push_back(part(".", "torch.distributed.checkpoint folder (SHARDED_STATE_DICT)",
                         [&] { return stored(io::open_dcp(folder)->tensors()); }));
  return parts;
}

std::string kind_of_folder(const std::string& folder, const PartJson& parts) {
  if (is_there(folder + "/" + kManifestName)) return "checkpoint of tessera";
  if (io::is_dcp_folder(folder)) return "torch.distributed.checkpoint folder";
  if (is_there(folder + "/state.json")) return "training state of tessera";
  for (const auto& p : parts) {
    const std::string kind = p["kind"];
    if (kind.find("Accelerate") != std::string::npos || kind.find("STATE_DICT") != std::string::npos)
      return "FSDP checkpoint of Accelerate";
    if (kind.starts_with("PEFT")) return "PEFT adapter";
    if (kind.starts_with("optimizer of transformers")) return "checkpoint of transformers' Trainer";
  }
  if (!parts.empty()) return "model";
  return "folder without weights";
}

void add_manifest(const std::string& folder, Checksums checksums, PartJson& out) {
  try {
    const Manifest manifest = read_manifest(folder);
    out["step"] = manifest.step;
    out["world_size"] = manifest.world_size;
    out["written_by"] = manifest.created_by;
    out["format_version"] = manifest.version;
    out["files"] = manifest.files.size();
    const bool verify = checksums == Checksums::kVerify;
    const std::string damage = find_damage(folder, verify ? Depth::kChecksums : Depth::kSizes);
    out["state"] = damage.empty() ? (verify ? "whole (all checksums fit)" : "whole (all sizes fit)") : damage;
    if (!damage.empty()) out["damaged"] = true;
  } catch (const CheckpointError& e) {
    out["state"] = e.what();
    out["damaged"] = true;
  }
}

void add_run_state(const std::string& file, PartJson& out) {
  const auto json = nlohmann::json::parse(bounded_json(read_file(file), file), nullptr, false);
  if (json.is_discarded() || !json.is_object()) return;
  for (const char* key : {"global_step", "max_steps", "epoch", "best_metric", "best_model_checkpoint"})
    if (json.contains(key) && !json[key].is_null()) out[key] = json[key];
}

PartJson describe_checkpoints(const std::string& folder) {
  PartJson out = PartJson::array();
  for (const auto& checkpoint : list_checkpoints(folder)) {
    const std::string damage = find_damage(checkpoint.path, Depth::kSizes);
    out.push_back({{"name", fs::path(checkpoint.path).filename().string()},
                   {"step", checkpoint.step},
                   {"state", damage.empty() ? "whole (all sizes fit)" : damage}});
  }
  return out;
}

}  // namespace

nlohmann::ordered_json describe(const std::string& path, Checksums checksums) {
  if (!is_there(path)) throw DataError(fmt::format("'{}': no such file or folder", path), path);
  PartJson out = {{"path", path}};
  if (!fs::is_directory(path)) {
    out["kind"] = "file";
    out["parts"] =
        PartJson::array({part(fs::path(path).filename().string(), "tensors", [&] { return list_any(path); })});
    out["damaged"] = out["parts"][0].contains("error");
    return out;
  }
  PartJson parts = parts_of_folder(path);
  out["kind"] = kind_of_folder(path, parts);
  out["damaged"] = std::any_of(parts.begin(), parts.end(), [](const auto& p) { return p.contains("error"); });
  if (is_there(path + "/" + kManifestName)) add_manifest(path, checksums, out);
  if (is_there(path + "/adapter_config.json")) {
    const auto base = families::base_name_of(path);
    out["base_model"] = base.empty() ? "not named by adapter_config.json" : base;
  }
  if (is_there(path + "/trainer_state.json")) add_run_state(path + "/trainer_state.json", out);
  if (auto checkpoints = describe_checkpoints(path); !checkpoints.empty()) out["checkpoints"] = std::move(checkpoints);
  out["parts"] = std::move(parts);
  return out;
}

}  // namespace tessera::checkpoint
