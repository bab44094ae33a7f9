#include "verify/noise.h"

#include <algorithm>

#include "tessera/io/tensor_source.h"

namespace tessera::verify {

namespace fs = std::filesystem;

namespace {

/// Adapters' files leave out that the adapter is "default".
std::string name_in_files(std::string name) {
  const std::string part = ".default";
  if (name.ends_with(part)) return name.substr(0, name.size() - part.size());
  if (const auto at = name.find(part + "."); at != std::string::npos) name.erase(at, part.size());
  return name;
}

}  // namespace

std::string plain_name(std::string name) {
  for (const std::string prefix : {"base_model.model.", "base_model."}) {
    if (!name.starts_with(prefix)) continue;
    name = name.substr(prefix.size());
    break;
  }
  for (const std::string part : {".base_layer", ".modules_to_save.default", ".ln_tuning_layers.default"}) {
    if (const auto at = name.find(part); at != std::string::npos) name.erase(at, part.size());
  }
  // One for all layers, listed below the first of them.
  for (const std::string shared : {"vblora_vector_bank", "unilora_theta_d"})
    if (const auto at = name.find(shared); at != std::string::npos) name.erase(0, at);
  return name;
}

std::map<std::string, at::Tensor> noisy_elements(const fs::path& folder) {
  std::map<std::string, at::Tensor> sizes;
  const auto read = [&](const fs::path& file, const std::string& prefix, const std::string& suffix) {
    if (!fs::exists(file)) return;
    const auto source = io::open_safetensors(file.string());
    for (const auto& info : source->tensors()) {
      if (!info.name.starts_with(prefix) || !info.name.ends_with(suffix)) continue;
      const auto name = info.name.substr(prefix.size(), info.name.size() - prefix.size() - suffix.size());
      const auto t = io::read_tensor(*source, info.name);
      sizes[plain_name(name)] = suffix.empty() ? t.abs() : t.sqrt();
    }
  };
  read(folder / "step0_grads.safetensors", "grad.", "");
  read(folder / "final_optimizer.safetensors", "", ".exp_avg_sq");
  return noise_among(sizes);
}

std::map<std::string, at::Tensor> noise_among(const std::map<std::string, at::Tensor>& sizes) {
  double scale = 0;
  for (const auto& [name, t] : sizes) scale = std::max(scale, t.max().item<double>());
  std::map<std::string, at::Tensor> noise;
  for (const auto& [name, t] : sizes) {
    // Exact zeros in a matrix are rows that no token reached, or an adapter's first gradient: no noise.
    const bool bias = t.dim() == 1 && t.max().item<double>() > 0;
    noise[name_in_files(name)] = bias ? t.lt(1e-5 * scale) : t.gt(0).logical_and(t.lt(1e-5 * scale));
  }
  return noise;
}

at::Tensor noise_of(const std::map<std::string, at::Tensor>& noise, const std::string& file_name) {
  const std::string name = name_in_files(plain_name(file_name)), bias = ".bias";
  auto it = noise.find(name);
  if (it == noise.end() && name.ends_with(bias))  // merged, it has the adapter's added to it
    it = noise.find(name.substr(0, name.size() - bias.size()) + ".lora_B" + bias);
  return it == noise.end() ? at::Tensor() : it->second;
}

at::Tensor without_noise(const at::Tensor& t, const at::Tensor& noise) {
  return noise.defined() ? t.masked_fill(noise, 0) : t;
}

}  // namespace tessera::verify
