#include "checkpoint/save_packed.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <memory>

#include "base/file.h"
#include "checkpoint/visit_dense.h"
#include "models/names_in_files.h"
#include "models/pack_layers.h"
#include "peft/merge.h"
#include "quant/packed_files.h"
#include "tensor/device.h"
#include "tensor/device_memory.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/nn/linear.h"

namespace tessera::checkpoint {
namespace {

/// Where the parameters of a model go.
class PackedFolder {
 public:
  PackedFolder(const fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module,
               const SavePackedOptions& options, const std::set<std::string>& adapters)
      : dtype_(options.save.dtype.value()), device_(options.save.device), names_(module) {
    if (options.packed) {
      form_ = models::file_form(options.packed->quantization, dtype_);
      packed_ = options.packed->layers;
    }
    std::set<std::string> statistics;
    for (const auto& item : module.named_modules()) {
      const auto* linear = dynamic_cast<const nn::Linear*>(item.value().get());
      if (!linear) continue;
      linears_.emplace(item.key() + ".weight", linear);
      if (!linear->codec()) continue;
      for (const auto& field : linear->codec()->fields(linear->out_features(), linear->in_features()))
        if (!field.is_codes()) statistics.insert(field.full_name(item.key() + ".weight"));
    }
    for (const auto& view : model.shards())
      if (!adapters.contains(view.name) && !statistics.contains(view.name)) announce(view);
  }
  const std::vector<io::TensorInfo>& infos() const { return infos_; }

  /// value: a packed matrix unpacked, [out, in]; else as the parameter is.
  void write(io::SafetensorsWriter& writer, const std::string& name, const at::Tensor& value) const {
    const auto* linear = linear_of(name);
    const bool in_out = linear && linear->layout_in_files() == nn::WeightLayout::kInOut;
    if (form_ && is_packed(name)) {
      const auto there = value.to(device_);
      const auto matrix = to_stored(in_out && !linear->codec() ? there.t() : there, dtype_, name);
      auto packed = tensor::pack(quant::codec_of(form_->settings, linear->in_features()), matrix);
      for (auto& field : packed.fields) field = tensor::on_host(field);
      for (const auto& [stored, tensor] : quant::stored_tensors(*form_, name, packed, quant::StateRoom::kForAnyOffset))
        writer.write(stored, tensor);
      return;
    }
    const auto dense = in_out && linear->codec() ? value.t() : value;
    const auto as_stored = tensor::on_host(to_stored(dense.contiguous(), dtypes_.at(name), name));
    for (const auto& in_file : names_.to_write(name)) writer.write(in_file, as_stored);
  }

 private:
  const nn::Linear* linear_of(const std::string& name) const {
    const auto found = linears_.find(name);
    return found == linears_.end() ? nullptr : found->second;
  }
  bool is_packed(const std::string& name) const {
    return linear_of(name) && packed_.contains(name.substr(0, name.rfind('.')));
  }

  void announce(const fsdp::ShardView& view) {
    const auto* linear = linear_of(view.name);
    const bool unpacks = linear && linear->codec();
    const auto dtype = dtypes_[view.name] = unpacks ? dtype_ : stored_as(view.dtype, dtype_);
    if (form_ && is_packed(view.name)) {
      for (auto& info :
           quant::stored_infos(*form_, view.name, linear->out_features(), linear->in_features(), std::nullopt))
        infos_.push_back(std::move(info));
      return;
    }
    auto shape = view.shape;
    if (unpacks) {
      shape = {linear->out_features(), linear->in_features()};
      if (linear->layout_in_files() == nn::WeightLayout::kInOut) std::swap(shape[0], shape[1]);
    }
    for (const auto& name : names_.to_write(view.name))
      infos_.push_back({.name = name, .dtype = dtype, .shape = shape, .file = "model.safetensors"});
  }

  at::ScalarType dtype_;
  at::Device device_;
  models::NamesInFiles names_;
  std::optional<quant::FileForm> form_;
  std::set<std::string> packed_;                      // layers
  std::map<std::string, const nn::Linear*> linears_;  // by weight
  std::map<std::string, at::ScalarType> dtypes_;      // by parameter
  std::vector<io::TensorInfo> infos_;
};

}  // namespace

bool has_packed(const fsdp::FullyShardedDataParallel& model) {
  const auto views = model.shards();
  return std::any_of(views.begin(), views.end(), [](const fsdp::ShardView& view) { return view.packed; });
}

void save_packed(fsdp::FullyShardedDataParallel& model, const nn::HookedModule& module,
                 const SavePackedOptions& options, const std::string& folder) {
  const at::NoGradGuard no_grad;
  TESSERA_CHECK(options.save.dtype.has_value(), "what is unpacked is written in a dtype");
  const auto adapters = nn::adapter_parameters(module);
  std::optional<peft::Merger> merger;
  if (options.adapted)
    merger.emplace(module, options.adapted->method, gather_values(model, adapters), options.save.device);
  const PackedFolder tensors(model, module, options, adapters);
  const bool writes = model.group().rank() == 0;
  SaveQueue queue;
  std::unique_ptr<io::SafetensorsWriter> writer;
  if (writes)
    queue.push([&] {
      ensure_writable_folder(folder);
      writer = std::make_unique<io::SafetensorsWriter>(folder + "/model.safetensors", tensors.infos());
    });
  visit_dense(
      model, module,
      [&](const std::string& name, const at::Tensor& value) {
        if (!writes) return;
        queue.push([&] {
          tensor::naming_device_errors(
              [&] { return "writing '" + name + "' with '" + options.save.device.str() + "'"; },
              [&] { tensors.write(*writer, name, merger ? merger->merged(name, value) : value); }, kHelpInWriting);
        });
      },
      [&](const std::string& name) { return !adapters.contains(name); }, options.save.device);
  if (writes)
    queue.push([&] {
      writer->commit();
      ConfigChanges changes{
          .vocab_size = options.save.vocab_size, .dtype = options.save.dtype, .classifier = options.save.classifier};
      if (options.packed)
        changes.quantization = options.packed->quantization;
      else
        changes.unpacked = true;
      changes.untied = options.head == Head::kUntied;
      copy_model_files(options.save.files, folder, changes);
    });
  throw_failure_of_any(model.group(), queue.take_failure(), folder);
}

}  // namespace tessera::checkpoint
