#include "checkpoint/pretrained.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "base/file.h"
#include "io/tensor_source.h"
#include "peft/adapter_files.h"
#include "peft/slots.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using NameInFile = std::function<std::string(const std::string& parameter)>;  // "": not saved

/// Runs a step on rank 0, keeping its failure for later: the collectives in between must be finished by every rank.
class RankZero {
 public:
  explicit RankZero(comm::Communicator& group) : group_(group) {}
  void run(const std::function<void()>& step) {
    if (group_.rank() != 0 || !failure_.empty()) return;
    try {
      step();
    } catch (const std::exception& e) {
      failure_ = *e.what() ? e.what() : "unknown failure";
    }
  }
  /// Collective: the failure becomes everybody's, so that no rank goes on alone.
  void finish(const std::string& path) {
    const std::string failure = group_.broadcast_object(failure_, 0);
    if (!failure.empty()) throw CheckpointError(failure, path);
  }

 private:
  comm::Communicator& group_;
  std::string failure_;
};

using Visit = std::function<void(const std::string& parameter, const at::Tensor& tensor)>;

/// `visit_tensors` calls its argument for every parameter that has a name in the file.
void save(fsdp::FullyShardedDataParallel& model, const std::string& folder, const std::string& file,
          const NameInFile& name_in_file, const std::function<void(const Visit&)>& visit_tensors,
          const std::function<void()>& write_beside) {
  RankZero zero(model.group());
  std::unique_ptr<io::SafetensorsWriter> writer;
  zero.run([&] {
    ensure_writable_folder(folder);
    std::vector<io::TensorInfo> infos;
    for (const auto& view : model.shards()) {
      const std::string name = name_in_file(view.name);
      if (!name.empty()) infos.push_back({.name = name, .dtype = view.dtype, .shape = view.shape, .file = file});
    }
    writer = std::make_unique<io::SafetensorsWriter>(folder + "/" + file, std::move(infos));
  });
  visit_tensors([&](const std::string& parameter, const at::Tensor& tensor) {
    zero.run([&] { writer->write(name_in_file(parameter), tensor); });
  });
  zero.run([&] {
    writer->commit();
    write_beside();
  });
  zero.finish(folder);
}

std::string base_name(const std::string& parameter) {
  return peft::is_adapter_parameter(parameter) ? std::string() : parameter;
}

}  // namespace

void copy_model_files(const std::string& from, const std::string& to) {
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "spiece.model", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt"}) {
    const fs::path source = fs::path(from) / name;
    if (fs::exists(source) && !fs::equivalent(from, to))
      write_file_atomically((fs::path(to) / name).string(), read_file(source.string()));
  }
}

void save_pretrained(fsdp::FullyShardedDataParallel& model, const std::string& base_folder, const std::string& folder) {
  save(
      model, folder, "model.safetensors", [](const std::string& parameter) { return parameter; },
      [&](const Visit& visit) { model.visit_full(visit); }, [&] { copy_model_files(base_folder, folder); });
}

void save_adapter(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module, const peft::LoraConfig& config,
                  const std::string& folder) {
  std::map<std::string, std::string> names;
  for (auto& entry : peft::adapter_entries(module, config)) names[entry.parameter] = entry.file_name;
  const auto name_in_file = [&](const std::string& parameter) {
    const auto it = names.find(parameter);
    return it == names.end() ? std::string() : it->second;
  };
  save(
      model, folder, "adapter_model.safetensors", name_in_file,
      [&](const Visit& visit) {
        model.visit_full(visit, [&](const std::string& name) { return names.contains(name); });
      },
      [&] { write_file_atomically(folder + "/adapter_config.json", peft::adapter_config_json(config)); });
}

void save_merged(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module, const std::string& base_folder,
                 const std::string& folder) {
  save(
      model, folder, "model.safetensors", base_name, [&](const Visit& visit) { visit_merged(model, module, visit); },
      [&] { copy_model_files(base_folder, folder); });
}

}  // namespace tessera::checkpoint
