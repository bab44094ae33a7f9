#include "peft/methods/unilora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "base/dotted_name.h"
#include "base/numpy_random.h"
#include "io/renamed_source.h"
#include "tensor/device.h"
#include "tensor/shape_text.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::peft {
namespace {

/// The first layers of a module in transformers, where the model here has them in another order.
std::vector<std::string> listed_in_transformers(const std::string& model_type) {
  if (model_type == "opt" || model_type == "gptj" || model_type == "gpt_neo") return {"k_proj", "v_proj", "q_proj"};
  if (model_type == "phi3") return {"o_proj", "qkv_proj"};
  if (model_type == "mixtral") return {"w1", "w2", "w3"};
  return {};
}

/// Each place of a vector as often as the others, or once more, in PEFT's order.
at::Tensor drawn_places(std::int64_t count, std::int64_t length, std::uint64_t seed) {
  NumpyRandom random(seed);
  std::vector<std::int64_t> places(static_cast<std::size_t>(count / length * length));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int64_t>(i) / (count / length);
  const auto more = random.choice(length, count % length);
  places.insert(places.end(), more.begin(), more.end());
  random.shuffle(places);
  return at::from_blob(places.data(), {count}, at::kLong).clone();
}

}  // namespace

void UniLora::bind(ConfigKeys& keys) {
  keys.integer("r", r);
  keys.integer("proj_seed", proj_seed);
  keys.integer("theta_d_length", theta_d_length);
  bind_targets(keys);
  keys.number("unilora_dropout", unilora_dropout);
  keys.flag("fan_in_fan_out", fan_in_fan_out);
  keys.text("bias", bias);
  keys.number("init_theta_d_bound", init_theta_d_bound);
  keys.flag("init_weights", init_weights);
  keys.flag("save_indices", save_indices);
}

void UniLora::check() const {
  FactorMethod::check();
  require_positive("r", r);
  require_positive("theta_d_length", theta_d_length);
  require_probability("unilora_dropout", unilora_dropout);
  if (init_theta_d_bound <= 0)
    throw ConfigError("init_theta_d_bound must be positive, found " + std::to_string(init_theta_d_bound),
                      "init_theta_d_bound");
  if (proj_seed < 0)
    throw ConfigError("proj_seed must not be negative, found " + std::to_string(proj_seed), "proj_seed");
}

std::vector<std::string> UniLora::attach(models::Model& model, const models::ModelConfig& family) {
  listed_ = listed_in_transformers(family.model_type);
  return FactorMethod::attach(model, family);
}

void UniLora::choose(const std::vector<Slot>& chosen) {
  auto slots = chosen;
  const auto parent = [](const Slot& slot) { return slot.name.substr(0, slot.name.rfind('.') + 1); };
  const auto place = [&](const Slot& slot) {
    return std::find(listed_.begin(), listed_.end(), last_part(slot.name)) - listed_.begin();
  };
  for (auto begin = slots.begin(); begin != slots.end();) {
    const auto end = std::find_if(begin, slots.end(), [&](const Slot& s) { return parent(s) != parent(*begin); });
    std::stable_sort(begin, end, [&](const Slot& a, const Slot& b) { return place(a) < place(b); });
    begin = end;
  }
  factors_ = std::make_shared<Factors>();  // not those of whom this is a copy
  std::int64_t count = 0;
  for (const auto& slot : slots)
    if (slot.linear) count += r * (slot.linear->in_features() + slot.linear->out_features());
  const auto places = drawn_places(count, theta_d_length, static_cast<std::uint64_t>(proj_seed));
  scales_ = at::bincount(places, {}, theta_d_length).to(at::kFloat).rsqrt();
  std::int64_t begin = 0;
  const auto take = [&](const std::string& layer, const std::string& factor, std::int64_t rows, std::int64_t columns) {
    const auto own = places.narrow(0, begin, rows * columns).view({rows, columns});
    begin += own.numel();
    (*factors_)[{layer, factor}] = {own.to(at::kInt), {}};
  };
  for (const auto& slot : slots) {
    if (!slot.linear) continue;
    take(slot.name, "A", r, slot.linear->in_features());
    take(slot.name, "B", slot.linear->out_features(), r);
  }
}

std::vector<AddedTensor> UniLora::shared(const std::vector<LayerSizes>&) const {
  return {{"unilora_theta_d.default", {theta_d_length}, init_weights ? uniform(init_theta_d_bound) : normal(1)}};
}

at::Tensor UniLora::made(const Factor& factor, const at::Tensor& theta) const {
  const auto taken = [&](const at::Tensor& from) {
    return from.index_select(0, tensor::beside(factor.places, theta).view(-1)).view(factor.places.sizes());
  };
  const auto& own = factor.scales;
  const auto scales = tensor::beside(own.defined() ? own : scales_, theta).to(theta.scalar_type());
  return own.defined() ? taken(theta) * scales : taken(theta * scales);
}

DeltaFactors UniLora::factors(const LayerSizes& sizes, const Tensors& t) const {
  return {made(factors_->at({sizes.name, "A"}), t[0]), made(factors_->at({sizes.name, "B"}), t[0]), 1.0,
          unilora_dropout};
}

namespace {

std::string name_in_file(const std::string& layer, const char* what, const std::string& factor) {
  return layer + ".unilora_" + what + "_" + factor;
}

}  // namespace

Values UniLora::in_file(const Values&) const {
  Values out;
  if (!save_indices) return out;
  for (const auto& [of, factor] : *factors_) {
    out[prefix() + name_in_file(of.first, "indices", of.second)] = factor.places.to(at::kLong);
    out[prefix() + name_in_file(of.first, "scales", of.second)] =
        factor.scales.defined() ? factor.scales
                                : scales_.index_select(0, factor.places.view(-1)).view(factor.places.sizes());
  }
  return out;
}

std::shared_ptr<const io::TensorSource> UniLora::readable(std::shared_ptr<const io::TensorSource> file) const {
  std::map<std::string, std::pair<Factor*, bool>> known;  // by name in the file: whose it is, and whether of places
  for (auto& [of, factor] : *factors_) {
    known[prefix() + name_in_file(of.first, "indices", of.second)] = {&factor, true};
    known[prefix() + name_in_file(of.first, "scales", of.second)] = {&factor, false};
  }
  for (const auto& info : file->tensors()) {
    const auto found = known.find(info.name);
    if (found == known.end()) continue;
    const auto value = io::read_tensor(*file, info.name);
    auto& [factor, of_places] = found->second;
    if (value.sizes() != factor->places.sizes()) {
      throw DataError(info.file + ": tensor '" + info.name + "' has the shape " + tensor::shape_text(info.shape) +
                          ", expected " + tensor::shape_text(factor->places.sizes()) +
                          " for this model; r or the base model differ",
                      info.file);
    }
    if (!of_places) {
      factor->scales = value.to(at::kFloat);
      continue;
    }
    if (value.min().item<double>() < 0 || value.max().item<double>() >= static_cast<double>(theta_d_length)) {
      throw DataError(info.file + ": tensor '" + info.name + "' holds places outside of unilora_theta_d, which has " +
                          std::to_string(theta_d_length) + " numbers",
                      info.file);
    }
    factor->places = value.to(at::kInt);
  }
  for (const auto& [name, of] : known)
    if (save_indices && !file->find(name))
      throw DataError(file->tensors().front().file + " lacks the tensor '" + name + "', which save_indices says it has",
                      name);
  return io::renamed_source(file, [&](const std::string& name) { return known.contains(name) ? "" : name; });
}

}  // namespace tessera::peft
