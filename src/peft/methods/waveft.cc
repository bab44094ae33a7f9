#include "peft/methods/waveft.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <tuple>

#include "nn/ops/device.h"
#include "peft/methods/torch_draws.h"
#include "peft/methods/wavelets.h"
#include "peft/targets.h"
#include "tessera/base/error.h"

namespace tessera::peft {

void WaveFt::bind(ConfigKeys& keys) {
  keys.integer("n_frequency", n_frequency);
  keys.number("scaling", scaling);
  keys.text("wavelet_family", wavelet_family);
  keys.flag("use_idwt", use_idwt);
  keys.integer("random_loc_seed", random_loc_seed);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  bind_targets(keys);
  keys.names_or_regex("exclude_modules", exclude_modules, exclude_regex);
  keys.text("bias", bias);
  keys.pattern("n_frequency_pattern", n_frequency_pattern);
  keys.flag("proportional_parameters", proportional_parameters);
  keys.flag("init_weights", init_weights);
}

void WaveFt::check() const {
  DeltaMethod::check();
  require_positive("n_frequency", n_frequency);
  if (!is_wavelet_name(wavelet_family)) {
    throw ConfigError(
        "wavelet_family is one of db1 to db38, sym2 to sym20, coif1 to coif17; found '" + wavelet_family + "'",
        "wavelet_family");
  }
  if (use_idwt && wavelet_filter(wavelet_family).empty()) {
    throw ConfigError(
        "wavelet_family: there are coefficients of db1 to db10, sym2 to sym10 and coif1 to coif4, as in "
        "PEFT, and none of '" +
            wavelet_family + "'; choose one of these, or use_idwt false",
        "wavelet_family");
  }
}

std::vector<std::string> WaveFt::default_targets(const models::ModelConfig& family) const {
  return feed_forward_of_gpt2(family);
}

// PEFT's share of all numbers, rounded to even.
void WaveFt::choose(const std::vector<Slot>& slots) {
  shares_.clear();
  if (!proportional_parameters) return;
  const auto places_of = [](const Slot& slot) {
    return slot.linear ? slot.linear->in_features() * slot.linear->out_features() : 0;
  };
  std::int64_t all = 0, layers = 0;
  for (const auto& slot : slots) {
    all += places_of(slot);
    layers += slot.linear ? 1 : 0;
  }
  for (const auto& slot : slots) {
    const double ratio = static_cast<double>(places_of(slot)) / static_cast<double>(all);
    const auto share = std::nearbyint(ratio * static_cast<double>(n_frequency * layers));
    shares_[slot.name] = std::max<std::int64_t>(1, static_cast<std::int64_t>(share));
  }
}

std::int64_t WaveFt::count_of(const LayerSizes& layer) const {
  const auto share = shares_.find(layer.name);
  const auto count = share != shares_.end()
                         ? share->second
                         : by_pattern(layer.name, n_frequency_pattern, n_frequency, "n_frequency_pattern");
  require_places(count, layer);
  return count;
}

std::vector<AddedTensor> WaveFt::added(const LayerSizes& layer) const {
  return {{"waveft_spectrum.default", {count_of(layer)}, init_weights ? zeros() : normal(0.01)}};
}

// A permutation of all places is drawn for a few of them, so what was drawn is kept: layers of a size share it.
nn::SparseDeltaPtr WaveFt::made_of(const LayerSizes& layer) const {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::string, double>;
  static std::mutex mutex;
  static std::map<Key, nn::SparseDeltaPtr> known;
  const auto count = count_of(layer);
  const std::scoped_lock lock(mutex);
  auto& made = known[{layer.out, layer.in, random_loc_seed, count, use_idwt ? wavelet_family : "", scaling}];
  if (made) return made;
  auto flat = TorchDraws(random_loc_seed).permutation(layer.out * layer.in).narrow(0, 0, count).clone();
  if (!use_idwt) {
    auto places = c10::make_intrusive<nn::SparsePlaces>(std::move(flat), layer.out, layer.in);
    return made = c10::make_intrusive<nn::SparseDelta>(std::move(places), scaling);
  }
  const auto filter = wavelet_filter(wavelet_family);
  const Synthesis rows(filter, layer.out), columns(filter, layer.in);
  const auto half_rows = rows.coefficients / 2, half_columns = columns.coefficients / 2;
  auto* at = flat.mutable_data_ptr<std::int64_t>();
  for (std::int64_t k = 0; k < count; ++k) {
    auto row = at[k] / layer.in + rows.offset, column = at[k] % layer.in + columns.offset;
    // In PEFT the upper right quarter has the high-pass filter over rows and the low-pass one over columns.
    if ((row < half_rows) != (column < half_columns)) {
      row += row < half_rows ? half_rows : -half_rows;
      column += column < half_columns ? half_columns : -half_columns;
    }
    at[k] = row * columns.coefficients + column;
  }
  auto places = c10::make_intrusive<nn::SparsePlaces>(std::move(flat), rows.coefficients, columns.coefficients);
  return made = c10::make_intrusive<nn::SparseDelta>(std::move(places), scaling, rows.matrix, columns.matrix);
}

at::Tensor WaveFt::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                          const Tensors& t) const {
  if (!nn::has_kernels(x)) return DeltaMethod::output(layer, sizes, x, t);
  return nn::panel_product(x, layer.handle(), layer.bias, t[0], made_of(sizes));
}

at::Tensor WaveFt::delta(const LayerSizes& sizes, const Tensors& t) const {
  return nn::sparse_matrix(t[0], *made_of(sizes)).to(t[0].scalar_type());
}

}  // namespace tessera::peft
