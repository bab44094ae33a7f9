#include "checkpoint/pretrained.h"

#include <filesystem>
#include <functional>
#include <memory>

#include "base/file.h"
#include "io/tensor_source.h"
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

void save(fsdp::FullyShardedDataParallel& model, const std::string& folder, const std::string& file,
          const NameInFile& name_in_file, const std::function<void()>& write_beside) {
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
  model.visit_full([&](const std::string& parameter,
                       const at::Tensor& tensor) { zero.run([&] { writer->write(name_in_file(parameter), tensor); }); },
                   [&](const std::string& parameter) { return !name_in_file(parameter).empty(); });
  zero.run([&] {
    writer->commit();
    write_beside();
  });
  zero.finish(folder);
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
      [&] { copy_model_files(base_folder, folder); });
}

void save_adapter(fsdp::FullyShardedDataParallel& model, const peft::LoraConfig& config, const std::string& folder) {
  save(model, folder, "adapter_model.safetensors", peft::adapter_file_name,
       [&] { write_file_atomically(folder + "/adapter_config.json", peft::adapter_config_json(config)); });
}

}  // namespace tessera::checkpoint
