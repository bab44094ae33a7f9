#include "checkpoint/pretrained.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/file.h"
#include "checkpoint/save_packed.h"
#include "checkpoint/save_slices.h"
#include "models/names_in_files.h"
#include "peft/adapter_config.h"
#include "peft/adapter_files.h"
#include "tensor/device.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::checkpoint {
namespace {

using Visit = std::function<void(const std::string& parameter, const at::Tensor& tensor)>;

/// Where tensors go and under which names.
struct TensorFile {
  std::string folder, name;
  NamesInFile names;
  std::optional<at::ScalarType> dtype;
  peft::Values made = {};  // further tensors, on rank 0
};

/// Whole numbers stay what they are.
at::ScalarType dtype_in_file(const at::Tensor& tensor, std::optional<at::ScalarType> chosen) {
  return at::isFloatingType(tensor.scalar_type()) ? chosen.value_or(tensor.scalar_type()) : tensor.scalar_type();
}

/// `visit_tensors` calls its argument for every parameter that has a name in the file.
void save(fsdp::FullyShardedDataParallel& model, const TensorFile& file,
          const std::function<void(const Visit&)>& visit_tensors, const std::function<void()>& write_beside,
          SaveQueue* later = nullptr) {
  SaveQueue now;
  SaveQueue& queue = later ? *later : now;
  const bool writes = model.group().rank() == 0;
  const auto writer = std::make_shared<std::unique_ptr<io::SafetensorsWriter>>();
  std::map<std::string, at::ScalarType> dtypes;  // by parameter
  if (writes) {
    std::vector<io::TensorInfo> infos;
    for (const auto& view : model.shards()) {
      const auto dtype = dtypes[view.name] = stored_as(view, file.dtype);
      for (const auto& name : file.names(view.name))
        infos.push_back({.name = name, .dtype = dtype, .shape = view.shape, .file = file.name});
    }
    for (const auto& [name, tensor] : file.made)
      infos.push_back(
          {.name = name, .dtype = dtype_in_file(tensor, file.dtype), .shape = tensor.sizes().vec(), .file = file.name});
    queue.push([=, path = file.folder + "/" + file.name, folder = file.folder] {
      ensure_writable_folder(folder);
      *writer = std::make_unique<io::SafetensorsWriter>(path, infos);
    });
    for (const auto& [name, tensor] : file.made) {
      queue.push([writer, name = name, stored = to_stored(tensor, dtype_in_file(tensor, file.dtype), name)] {
        (*writer)->write(name, stored);
      });
    }
  }
  visit_tensors([&](const std::string& parameter, const at::Tensor& tensor) {
    const auto names = writes ? file.names(parameter) : std::vector<std::string>();
    if (names.empty()) return;
    queue.push_with(tensor, [writer, names, dtype = dtypes.at(parameter)](const at::Tensor& values) {
      const at::Tensor stored = tensor::on_host(to_stored(values, dtype, names.front()));
      for (const auto& name : names) (*writer)->write(name, stored);
    });
  });
  if (writes) {
    queue.push([writer, write_beside, &queue] {
      const auto written = (*writer)->commit();
      queue.record({written.path, written.bytes, written.crc32c});
      write_beside();
    });
  }
  if (!later) throw_failure_of_any(model.group(), queue.take_failure(), file.folder);
}

/// The dtype of the model as transformers sees it: that of its first floating tensor outside adapters.
std::optional<at::ScalarType> dtype_of(const fsdp::FullyShardedDataParallel& model, const SaveOptions& options,
                                       const std::set<std::string>& adapters = {}) {
  if (options.dtype) return options.dtype;
  for (const auto& view : model.shards())
    if (at::isFloatingType(view.dtype) && !adapters.contains(view.name)) return view.dtype;
  return std::nullopt;
}

/// Of a whole model's parameters.
NamesInFile names_in_model_file(const fsdp::FullyShardedDataParallel& model, const SaveOptions& options) {
  std::vector<std::string> parameters;
  for (const auto& view : model.shards()) parameters.push_back(view.name);
  return [names = models::NamesInFiles(std::move(parameters)),
          is_body_alone = options.is_body_alone](const std::string& parameter) {
    if (!is_body_alone) return names.to_write(parameter);
    if (names.is_of_head(parameter)) return std::vector<std::string>();
    return std::vector{parameter.substr(names.body().size())};
  };
}

}  // namespace

void save_pretrained(fsdp::FullyShardedDataParallel& model, const SaveOptions& options, const std::string& folder,
                     SaveQueue* queue) {
  const NamesInFile names = names_in_model_file(model, options);
  const ConfigChanges changes{.vocab_size = options.vocab_size,
                              .dtype = dtype_of(model, options),
                              .unpacked = !has_packed(model),
                              .token_ids = options.token_ids,
                              .classifier = options.classifier};
  const auto write_beside = [=, files = options.files] { copy_model_files(files, folder, changes); };
  if (!writes_together(model)) {
    const auto visit_tensors = [&](const Visit& visit) { model.visit_full(visit); };
    return save(model, {folder, "model.safetensors", names, options.dtype}, visit_tensors, write_beside, queue);
  }
  SaveQueue now;
  SaveQueue& used = queue ? *queue : now;
  save_slices(model, folder + "/model.safetensors", names, used, options.dtype);
  if (model.group().rank() == 0) used.push(write_beside);
  if (!queue) throw_failure_of_any(model.group(), now.take_failure(), folder);
}

void save_adapter(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted, const SaveOptions& options,
                  const std::string& folder, SaveQueue* queue) {
  std::map<std::string, std::vector<std::string>> names;
  for (auto& entry : peft::adapter_entries(adapted.module, adapted.method))
    names[adapted.sharded_name(entry.parameter)].push_back(entry.file_name);
  const auto names_in_file = [&](const std::string& parameter) {
    const auto it = names.find(parameter);
    return it == names.end() ? std::vector<std::string>() : it->second;
  };
  save(
      model, {folder, "adapter_model.safetensors", names_in_file, options.dtype, made_for_file(model, adapted)},
      [&](const Visit& visit) {
        model.visit_full(visit, [&](const std::string& name) { return names.contains(name); });
      },
      [=, classifier = options.classifier, tokenizer = options.files.tokenizer,
       config = peft::adapter_config_json(adapted.method)] {
        write_file_atomically(folder + "/adapter_config.json", config);
        if (classifier) write_classifier_file(*classifier, folder);
        copy_model_files({.model = {}, .tokenizer = tokenizer}, folder);
      },
      queue);
}

void save_merged(fsdp::FullyShardedDataParallel& model, const AdaptedModule& adapted, const SaveOptions& options,
                 const std::string& folder, Head head) {
  const auto adapters = nn::adapter_parameters(adapted.module);
  const NamesInFile base_names = [&, names = names_in_model_file(model, options)](const std::string& parameter) {
    return adapters.contains(parameter) ? std::vector<std::string>() : names(parameter);
  };
  const ConfigChanges changes{.vocab_size = options.vocab_size,
                              .dtype = dtype_of(model, options, adapters),
                              .unpacked = !has_packed(model),
                              .untied = head == Head::kUntied,
                              .classifier = options.classifier};
  save(
      model, {folder, "model.safetensors", base_names, options.dtype},
      [&](const Visit& visit) { visit_merged(model, adapted, options.device, visit); },
      [&] { copy_model_files(options.files, folder, changes); });
}

}  // namespace tessera::checkpoint
