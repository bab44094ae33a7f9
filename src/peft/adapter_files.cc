// Names and values in adapter_model.safetensors.
#include <filesystem>

#include "io/tensor_source.h"
#include "peft/lora.h"
#include "tessera/base/error.h"
#include "tessera/nn/init.h"

namespace tessera::peft {

std::string adapter_file_name(const std::string& parameter_name) {
  const std::string slot = ".default.weight";
  if (parameter_name.find(".lora_") != std::string::npos && parameter_name.ends_with(slot)) {
    return "base_model.model." + parameter_name.substr(0, parameter_name.size() - slot.size()) + ".weight";
  }
  return {};
}

void load_adapter(nn::HookedModule& model, const std::string& folder) {
  std::string file = folder + "/adapter_model.safetensors";
  if (!std::filesystem::exists(file)) file = folder + "/adapter_model.bin";
  if (!std::filesystem::exists(file)) {
    throw DataError(folder + " holds neither adapter_model.safetensors nor adapter_model.bin", folder);
  }
  const auto source = io::open_weights(file);
  std::size_t used = 0;
  for (auto& item : model.named_parameters()) {
    const auto name = adapter_file_name(item.key());
    if (name.empty()) continue;
    const auto* info = source->find(name);
    if (!info) throw DataError(file + " lacks the tensor '" + name + "'", file);
    auto values = item.value().detach();
    if (values.sizes() != at::IntArrayRef(info->shape)) {
      throw DataError(
          "tensor '" + name + "' in " + file + " has another shape than the adapter; r or target_modules differ", file);
    }
    nn::allocate(values);
    source->read(name, 0, values.view({-1}));
    ++used;
  }
  if (used == source->tensors().size()) return;
  for (const auto& info : source->tensors()) {
    if (info.name.find(".lora_") == std::string::npos) {
      throw DataError("tensor '" + info.name + "' in " + file +
                          " is not part of a plain LoRA adapter (modules_to_save or a "
                          "trained bias); it is not supported",
                      file);
    }
  }
  throw DataError(file + " holds " + std::to_string(source->tensors().size()) + " tensors, the model's adapters take " +
                      std::to_string(used) + "; target_modules differ",
                  file);
}

}  // namespace tessera::peft
