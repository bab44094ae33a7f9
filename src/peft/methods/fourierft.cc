#include "peft/methods/fourierft.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/fft_ifft2.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/real.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "nn/kernels/panel_fourier.h"
#include "nn/ops/device.h"
#include "nn/ops/sparse_delta.h"
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
  using nn::kernels::PanelFourier;
  if (!nn::has_kernels(x) || !PanelFourier::takes(sizes.in) || !PanelFourier::takes(sizes.out))
    return DeltaMethod::output(layer, sizes, x, t);
  return nn::panel_product(x, layer.handle(), layer.bias, t[0], spectrum(sizes));
}

// Re exp(i(a + b)) is the mean of exp(ia) exp(ib) and of exp(-ia) exp(-ib): a number joins frequency -q of the input
// and p of the output, and q and -p.
nn::SparseDeltaPtr FourierFt::spectrum(const LayerSizes& layer) const {
  static std::mutex mutex;
  static std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, double>, nn::SparseDeltaPtr> made;
  const auto flat = places(layer);
  const auto in = layer.in, out = layer.out;
  const std::scoped_lock lock(mutex);
  auto& known = made[{out, in, random_loc_seed, flat.numel(), scaling}];
  if (known) return known;
  const auto p = at::floor_divide(flat, in), q = at::remainder(flat, in);
  const auto opposite = [](const at::Tensor& frequency, std::int64_t length) {
    return at::remainder(length - frequency, length);
  };
  const auto joined = at::cat({p * in + opposite(q, in), opposite(p, out) * in + q});
  const auto transform = [](std::int64_t length) {
    return nn::FixedFactor{{}, {}, std::make_shared<nn::kernels::PanelFourier>(length)};
  };
  return known = c10::make_intrusive<nn::SparseDelta>(
             c10::make_intrusive<nn::SparsePlaces>(joined, out, in),
             scaling / (2 * static_cast<double>(in) * static_cast<double>(out)), transform(out), transform(in));
}

at::Tensor FourierFt::delta(const LayerSizes& sizes, const Tensors& t) const {
  const auto spectrum = at::zeros({sizes.out * sizes.in}, t[0].options().dtype(at::kFloat))
                            .index_put({places(sizes)}, t[0].to(at::kFloat))
                            .view({sizes.out, sizes.in});
  return (at::real(at::fft_ifft2(spectrum)) * scaling).to(t[0].scalar_type());
}

}  // namespace tessera::peft
