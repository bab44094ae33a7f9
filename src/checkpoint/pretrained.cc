#include "checkpoint/pretrained.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "checkpoint/save_slices.h"
#include "io/tensor_source.h"
#include "models/gguf_model.h"
#include "peft/adapter_files.h"
#include "peft/slots.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
using Visit = std::function<void(const std::string& parameter, const at::Tensor& tensor)>;

/// `visit_tensors` calls its argument for every parameter that has a name in the file.
void save(fsdp::FullyShardedDataParallel& model, const std::string& folder, const std::string& file,
          const NamesInFile& names_in_file, const std::function<void(const Visit&)>& visit_tensors,
          const std::function<void()>& write_beside, SaveQueue* later = nullptr) {
  SaveQueue now;
  SaveQueue& queue = later ? *later : now;
  const bool writes = model.group().rank() == 0;
  const auto writer = std::make_shared<std::unique_ptr<io::SafetensorsWriter>>();
  if (writes) {
    std::vector<io::TensorInfo> infos;
    for (const auto& view : model.shards()) {
      for (const auto& name : names_in_file(view.name))
        infos.push_back({.name = name, .dtype = view.dtype, .shape = view.shape, .file = file});
    }
    queue.push([=] {
      ensure_writable_folder(folder);
      *writer = std::make_unique<io::SafetensorsWriter>(folder + "/" + file, infos);
    });
  }
  visit_tensors([&](const std::string& parameter, const at::Tensor& tensor) {
    const auto names = writes ? names_in_file(parameter) : std::vector<std::string>();
    if (names.empty()) return;
    queue.push([writer, names, kept = queue.keep(tensor)] {
      for (const auto& name : names) (*writer)->write(name, kept);
    });
  });
  if (writes) {
    queue.push([writer, write_beside, &queue] {
      const auto written = (*writer)->commit();
      queue.record({written.path, written.bytes, written.crc32c});
      write_beside();
    });
  }
  if (!later) throw_failure_of_any(model.group(), queue.take_failure(), folder);
}

void write_untied_config(const std::string& file) {
  auto config = nlohmann::ordered_json::parse(read_file(file));
  config["tie_word_embeddings"] = false;
  write_file_atomically(file, config.dump(2) + "\n");
}

std::vector<std::string> base_name(const std::string& parameter) {
  if (peft::is_adapter_parameter(parameter)) return {};
  return {parameter};
}

}  // namespace

void copy_model_files(const std::string& from, const std::string& to, std::int64_t vocab_size) {
  const bool elsewhere = !fs::exists(from) || !fs::equivalent(from, to);
  const auto stored = fs::path(from) / "config.json", written = fs::path(to) / "config.json";
  if (fs::exists(stored) || models::gguf_file_of(from)) {  // users' own modules have no config
    auto config = models::read_model_config(from);
    if (vocab_size > 0 && config.value("vocab_size", std::int64_t{0}) != vocab_size) {
      config["vocab_size"] = vocab_size;
      write_file_atomically(written.string(), config.dump(2) + "\n");
    } else if (elsewhere) {
      write_file_atomically(written.string(), fs::exists(stored) ? read_file(stored.string()) : config.dump(2) + "\n");
    }
  }
  if (!elsewhere) return;
  for (const char* name :
       {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "spiece.model", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt"}) {
    const fs::path source = fs::path(from) / name;
    if (fs::exists(source)) write_file_atomically((fs::path(to) / name).string(), read_file(source.string()));
  }
}

void save_pretrained(fsdp::FullyShardedDataParallel& model, const std::string& base_folder, const std::string& folder,
                     std::int64_t vocab_size, SaveQueue* queue) {
  const NamesInFile own_names = [](const std::string& parameter) { return std::vector{parameter}; };
  const auto write_beside = [=] { copy_model_files(base_folder, folder, vocab_size); };
  if (!writes_together(model)) {
    const auto visit_tensors = [&](const Visit& visit) { model.visit_full(visit); };
    return save(model, folder, "model.safetensors", own_names, visit_tensors, write_beside, queue);
  }
  SaveQueue now;
  SaveQueue& used = queue ? *queue : now;
  save_slices(model, folder + "/model.safetensors", own_names, used);
  if (model.group().rank() == 0) used.push(write_beside);
  if (!queue) throw_failure_of_any(model.group(), now.take_failure(), folder);
}

void save_adapter(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module, const peft::LoraConfig& config,
                  const std::string& folder, SaveQueue* queue) {
  std::map<std::string, std::vector<std::string>> names;
  for (auto& entry : peft::adapter_entries(module, config)) names[entry.parameter].push_back(entry.file_name);
  const auto names_in_file = [&](const std::string& parameter) {
    const auto it = names.find(parameter);
    return it == names.end() ? std::vector<std::string>() : it->second;
  };
  save(
      model, folder, "adapter_model.safetensors", names_in_file,
      [&](const Visit& visit) {
        model.visit_full(visit, [&](const std::string& name) { return names.contains(name); });
      },
      [=] { write_file_atomically(folder + "/adapter_config.json", peft::adapter_config_json(config)); }, queue);
}

void save_merged(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module, const std::string& base_folder,
                 const std::string& folder, Head head) {
  save(
      model, folder, "model.safetensors", base_name, [&](const Visit& visit) { visit_merged(model, module, visit); },
      [&] {
        copy_model_files(base_folder, folder);
        if (head == Head::kUntied) write_untied_config(folder + "/config.json");
      });
}

}  // namespace tessera::checkpoint
