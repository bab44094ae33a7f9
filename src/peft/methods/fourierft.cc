#include "peft/methods/fourierft.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/fft_ifft2.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>

#include <mutex>

#include "nn/ops/device.h"
#include "peft/methods/spectral_product.h"
#include "peft/methods/torch_draws.h"
#include "peft/targets.h"

namespace tessera::peft {

void FourierFt::bind(ConfigKeys& keys) {
  keys.integer("n_frequency", n_frequency);
  keys.number("scaling", scaling);
  keys.integer("random_loc_seed", random_loc_seed);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.text("bias", bias);
  keys.pattern("n_frequency_pattern", n_frequency_pattern);
  keys.flag("init_weights", init_weights);
}

void FourierFt::check() const {
  DeltaMethod::check();
  require_positive("n_frequency", n_frequency);
}

std::vector<std::string> FourierFt::default_targets(const models::ModelConfig& family) const {
  return feed_forward_of_gpt2(family);
}

std::int64_t FourierFt::count_of(const LayerSizes& layer) const {
  const auto count = by_dotted_end(layer.name, n_frequency_pattern, n_frequency, "n_frequency_pattern");
  require_places(count, layer);
  return count;
}

std::vector<AddedTensor> FourierFt::added(const LayerSizes& layer) const {
  return {{"fourierft_spectrum.default", {count_of(layer)}, init_weights ? zeros() : normal(1)}};
}

// A permutation of all places is drawn for a few of them, so what was drawn is kept: layers of a size share it.
at::Tensor FourierFt::places(const LayerSizes& layer) const {
  static std::mutex mutex;
  static std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, at::Tensor> drawn;
  const auto total = layer.in * layer.out, count = count_of(layer);
  const std::scoped_lock lock(mutex);
  auto& known = drawn[{total, random_loc_seed, count}];
  if (!known.defined()) known = TorchDraws(random_loc_seed).permutation(total).narrow(0, 0, count).clone();
  return known;
}

at::Tensor FourierFt::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                             const Tensors& t) const {
  if (!nn::has_kernels(x)) return DeltaMethod::output(layer, sizes, x, t);
  return spectral_product(x, layer.handle(), layer.bias, t[0], {places(sizes), scaling});
}

at::Tensor FourierFt::delta(const LayerSizes& sizes, const Tensors& t) const {
  const auto spectrum = at::zeros({sizes.out * sizes.in}, t[0].options().dtype(at::kFloat))
                            .index_put({places(sizes)}, t[0].to(at::kFloat))
                            .view({sizes.out, sizes.in});
  return (at::real(at::fft_ifft2(spectrum)) * scaling).to(t[0].scalar_type());
}

}  // namespace tessera::peft
