#include "peft/methods/shira.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/stack.h>
#include <c10/core/GeneratorImpl.h>

#include <mutex>
#include <set>
#include <tuple>

#include "base/json_text.h"
#include "io/renamed_source.h"
#include "nn/ops/device.h"
#include "peft/methods/torch_draws.h"
#include "tensor/shape_text.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {
namespace {

const std::string kNumbers = ".shira_weight", kPlaces = ".shira_indices";

}  // namespace

void Shira::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.text("mask_type", mask_type);
  keys.any("random_seed", random_seed);
  keys.names_or_regex("target_modules", target_modules, target_regex);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.flag("init_weights", init_weights);
}

void Shira::check() const {
  DeltaMethod::check();
  require_positive("r", r);
  if (!random_seed.is_null() && !random_seed.is_number_integer())
    throw ConfigError("random_seed is a whole number or null, found " + json_text(random_seed), "random_seed");
}

void Shira::check_new() const {
  if (mask_type != "random") {
    throw ConfigError("mask_type is '" + mask_type +
                          "'; a new adapter's is random (the file of a saved one holds the places of any mask)",
                      "mask_type");
  }
}

std::vector<std::string> Shira::attach(models::Model& model, const models::ModelConfig& family) {
  layers_ = std::make_shared<Layers>();  // not those of whom this is a copy
  auto names = DeltaMethod::attach(model, family);
  for (const auto& slot : adapted_slots(model))
    layers_->sizes[slot.name] = {slot.name, slot.linear->in_features(), slot.linear->out_features()};
  return names;
}

std::vector<std::string> Shira::default_targets(const models::ModelConfig& family) const {
  if (family.model_type == "phi") return {"q_proj", "v_proj"};
  return DeltaMethod::default_targets(family);
}

std::int64_t Shira::count_of(const LayerSizes& layer) const {
  const auto count = r * (layer.in + layer.out);
  if (count > layer.in * layer.out) {
    throw ConfigError("r " + std::to_string(r) + " asks for " + std::to_string(count) + " numbers, but '" + layer.name +
                          "' has " + std::to_string(layer.in * layer.out) + " places",
                      "r");
  }
  return count;
}

std::vector<AddedTensor> Shira::added(const LayerSizes& layer) const {
  return {{"shira_weight.default", {count_of(layer)}, init_weights ? zeros() : normal(1)}};
}

// A permutation of all places is drawn for a few of them, so what was drawn is kept: layers of a size share it.
nn::SparsePlacesPtr Shira::drawn(const LayerSizes& layer) const {
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
  static std::mutex mutex;
  static std::map<Key, nn::SparsePlacesPtr> known;
  const auto seed =
      random_seed.is_null() ? static_cast<std::int64_t>(c10::default_rng_seed_val) : random_seed.get<std::int64_t>();
  const auto count = count_of(layer);
  const std::scoped_lock lock(mutex);
  auto& places = known[{layer.out, layer.in, seed, count}];
  if (!places) {
    const auto chosen = TorchDraws(seed).permutation(layer.out * layer.in).narrow(0, 0, count);
    places = c10::make_intrusive<nn::SparsePlaces>(std::get<0>(at::sort(chosen)), layer.out, layer.in);
  }
  return places;
}

nn::SparsePlacesPtr Shira::places(const LayerSizes& layer) const {
  const auto found = layers_->from_file.find(layer.name);
  return found == layers_->from_file.end() ? drawn(layer) : found->second;
}

at::Tensor Shira::output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                         const Tensors& t) const {
  if (!nn::has_kernels(x)) return DeltaMethod::output(layer, sizes, x, t);
  return nn::panel_product(x, layer.handle(), layer.bias, t[0], c10::make_intrusive<nn::SparseDelta>(places(sizes)));
}

at::Tensor Shira::delta(const LayerSizes& sizes, const Tensors& t) const {
  return nn::sparse_matrix(t[0], nn::SparseDelta(places(sizes))).to(t[0].scalar_type());
}

Values Shira::in_file(const Values&) const {
  Values out;
  for (const auto& [name, sizes] : layers_->sizes) {
    const auto flat = places(sizes)->flat;
    out[prefix() + name + kPlaces] =
        at::stack({at::floor_divide(flat, sizes.in), at::remainder(flat, sizes.in)}).to(at::kInt);
  }
  return out;
}

std::shared_ptr<const io::TensorSource> Shira::readable(std::shared_ptr<const io::TensorSource> file) const {
  std::set<std::string> of_places;
  for (const auto& info : file->tensors()) {
    const auto layer = [&](const std::string& end) {
      const bool is_of_layer = info.name.starts_with(prefix()) && info.name.ends_with(end);
      return layers_->sizes.find(
          is_of_layer ? info.name.substr(prefix().size(), info.name.size() - prefix().size() - end.size()) : "");
    };
    const auto has_numbers = layer(kNumbers), found = layer(kPlaces);
    if (has_numbers != layers_->sizes.end()) {
      const auto places = info.name.substr(0, info.name.size() - kNumbers.size()) + kPlaces;
      if (!file->find(places)) throw DataError(info.file + " lacks the tensor '" + places + "'", info.file);
    }
    if (found == layers_->sizes.end()) continue;
    of_places.insert(info.name);
    const auto& [name, sizes] = *found;
    const std::vector<std::int64_t> expected = {2, count_of(sizes)};
    if (info.shape != expected) {
      throw DataError(info.file + ": tensor '" + info.name + "' has the shape " + tensor::shape_text(info.shape) +
                          ", expected " + tensor::shape_text(expected) + " for this model; r or the base model differ",
                      info.file);
    }
    const auto indices = io::read_tensor(*file, info.name).to(at::kLong);  // written on Windows they are float32
    const auto rows = indices.select(0, 0), columns = indices.select(0, 1);
    const auto outside = [](const at::Tensor& places, std::int64_t size) {
      return places.min().item<std::int64_t>() < 0 || places.max().item<std::int64_t>() >= size;
    };
    if (outside(rows, sizes.out) || outside(columns, sizes.in)) {
      throw DataError(info.file + ": tensor '" + info.name + "' holds places outside of the layer, which has " +
                          std::to_string(sizes.out) + " rows and " + std::to_string(sizes.in) + " columns",
                      info.file);
    }
    const auto flat = rows * sizes.in + columns;
    if (mask_type == "random" && at::equal(flat, drawn(sizes)->flat)) continue;
    layers_->from_file[name] = c10::make_intrusive<nn::SparsePlaces>(flat.contiguous(), sizes.out, sizes.in);
  }
  return io::renamed_source(file, [&](const std::string& name) { return of_places.contains(name) ? "" : name; });
}

}  // namespace tessera::peft
