#include "tasks/eva_start.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/all.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cosine_similarity.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "peft/eva/eva_ranks.h"
#include "peft/eva/incremental_svd.h"
#include "peft/eva/observed_inputs.h"
#include "peft/slots.h"
#include "tensor/device.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

using peft::EvaLayer;

[[noreturn]] void refuse_eva_start(const std::string& why) {
  throw ConfigError("EVA (init_lora_weights eva): " + why, "eva_config");
}

/// The linear layers that the method adapts, and what else it does.
struct Targets {
  std::vector<EvaLayer> layers;
  std::vector<std::string> others;
};

Targets targets_of(const peft::Lora& wanted, const AssembleOptions& options, const peft::EvaSettings& settings) {
  if (!wanted.target_parameters.empty()) refuse_eva_start("target_parameters names no layers; use target_modules");
  models::ModelConfig family;
  const auto skeleton = models::build_model(options.model_folder, &family,
                                            {.min_vocab_size = options.min_vocab_size,
                                             .attn_implementation = options.attn_implementation,
                                             .classifier = options.classifier});
  const auto report = peft::apply_adapter(*skeleton, family, wanted);
  const auto& resolved = dynamic_cast<const peft::Lora&>(*report.method);
  Targets out;
  for (const auto& slot : peft::slots(*skeleton)) {
    const bool adapted = std::find(report.adapted.begin(), report.adapted.end(), slot.name) != report.adapted.end();
    if (!adapted) continue;
    if (!slot.linear) {
      out.others.push_back(slot.name);
      continue;
    }
    const auto rank = resolved.rank_of(slot.name);
    const auto most = static_cast<std::int64_t>(std::nearbyint(static_cast<double>(rank) * settings.rho));
    if (most > slot.linear->in_features()) {
      refuse_eva_start(fmt::format("'{}' may get {} ranks (rho {} times {}), but has {} inputs; lower r or rho",
                                   slot.name, most, settings.rho, rank, slot.linear->in_features()));
    }
    out.layers.push_back({slot.name, rank, most, 0});
  }
  if (out.layers.empty()) refuse_eva_start("target_modules names no linear layer");
  return out;
}

/// Which layers have the same inputs, by one batch.
class InputHashes final : public peft::InputObserver {
 public:
  explicit InputHashes(std::size_t layers) : hashes_(layers, 0), seen_(layers, false) {}
  bool wants(std::size_t) const override { return true; }
  void see(std::size_t layer, const at::Tensor& rows) override {
    const auto here = tensor::on_host(rows).contiguous();
    const std::string_view bytes(static_cast<const char*>(here.const_data_ptr()), here.nbytes());
    hashes_[layer] = std::hash<std::string_view>()(bytes) ^ static_cast<std::size_t>(rows.size(1));
    seen_[layer] = true;
  }
  /// Of all ranks, by layer.
  std::vector<std::string> keys(const std::vector<EvaLayer>& layers, comm::Communicator& group) const {
    for (std::size_t i = 0; i < layers.size(); ++i)
      if (!seen_[i])
        refuse_eva_start("the model does not use '" + layers[i].name + "'; leave it out of target_modules");
    const comm::Bytes own(reinterpret_cast<const char*>(hashes_.data()), hashes_.size() * sizeof(std::size_t));
    std::vector<std::string> keys(hashes_.size());
    for (const auto& of_rank : group.all_gather_objects(own))
      for (std::size_t i = 0; i < keys.size(); ++i)
        keys[i] += of_rank.substr(i * sizeof(std::size_t), sizeof(std::size_t));
    return keys;
  }

 private:
  std::vector<std::size_t> hashes_;
  std::vector<bool> seen_;
};

/// The rows of all ranks, in their order.
at::Tensor rows_of_all(const at::Tensor& rows, comm::Communicator& group) {
  if (group.size() == 1) return rows;
  const auto sizes = at::empty({group.size()}, at::kLong);
  group.all_gather(sizes, at::full({1}, rows.size(0), at::kLong))->wait();
  const auto most = sizes.max().item<std::int64_t>(), width = rows.size(1);
  const auto padded = at::zeros({most, width}, rows.options());
  padded.narrow(0, 0, rows.size(0)).copy_(rows);
  const auto all = at::empty({group.size() * most * width}, rows.options());
  group.all_gather(all, padded.flatten())->wait();
  std::vector<at::Tensor> parts;
  for (int r = 0; r < group.size(); ++r)
    parts.push_back(all.view({group.size(), most, width})[r].narrow(0, 0, sizes[r].item<std::int64_t>()));
  return at::cat(parts);
}

/// The components of each layer's inputs; one rank computes them for a layer, all know how far they are.
class Components final : public peft::InputObserver {
 public:
  Components(const std::vector<EvaLayer>& layers, const peft::EvaSettings& settings, comm::Communicator& group)
      : layers_(layers), settings_(settings), group_(group) {
    for (const auto& layer : layers_) states_.push_back({peft::IncrementalSvd(layer.components), {}, {}, false, true});
    for (const auto& layer : layers_) ranks_.push_back(layer.components);
  }

  bool wants(std::size_t i) const override { return !layers_[i].is_like_another(i) && states_[i].active; }

  void see(std::size_t i, const at::Tensor& given) override {
    const auto rows = rows_of_all(tensor::on_host(given).contiguous(), group_);
    auto& state = states_[i];
    if (rows.size(0) < layers_[i].components || !is_mine(i)) return;
    const auto before = state.svd.components();
    state.svd.add(rows);
    if (before.defined())
      state.converged = at::cosine_similarity(state.svd.components(), before).ge(settings_.tau).to(at::kDouble);
  }

  /// Before a batch, as PEFT does it: layers that have what the ranks need are not looked at, until these change.
  /// False: none is left.
  bool go_on() {
    bool any = false;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].is_like_another(i)) continue;
      auto& state = states_[i];
      const bool converged = ranks_[i] == 0 || (state.converged.defined() &&
                                                at::all(state.converged.narrow(0, 0, ranks_[i])).item<bool>());
      state.active = !converged;
      any = any || state.active;
    }
    return any;
  }

  /// After a batch. Collective.
  void share() {
    std::int64_t numbers = 0;
    for (const auto& layer : layers_) numbers += 1 + 2 * layer.components;
    const auto all = at::zeros({numbers}, at::kDouble);
    std::int64_t at = 0;
    const auto part = [&](std::int64_t size) { return all.narrow(0, std::exchange(at, at + size), size); };
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto known = part(1), converged = part(layers_[i].components), shares = part(layers_[i].components);
      const auto& state = states_[i];
      if (!is_mine(i) || state.svd.empty()) continue;
      known.fill_(1);
      if (state.converged.defined()) converged.copy_(state.converged);
      shares.copy_(state.svd.shares());
    }
    group_.all_reduce(all, comm::ReduceOp::kSum)->wait();
    at = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      auto& state = states_[i];
      state.known = part(1).item<double>() > 0;
      state.converged = part(layers_[i].components);
      state.shares = part(layers_[i].components);
    }
    if (!first_unknown()) ranks_ = peft::spread_ranks(layers_, shares());
  }

  /// A layer of which no batch had enough tokens so far.
  std::optional<std::size_t> first_unknown() const {
    for (std::size_t i = 0; i < layers_.size(); ++i)
      if (!layers_[i].is_like_another(i) && !states_[i].known) return i;
    return std::nullopt;
  }

  const std::vector<std::int64_t>& ranks() const { return ranks_; }

  /// A of each layer with a rank. Collective.
  peft::Values values() {
    peft::Values out;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const auto first = layers_[i].like;
      if (first == i && ranks_[i] > 0) found_[i] = of_all(i);
      if (ranks_[i] > 0)
        out[layers_[i].name + ".lora_A.default.weight"] = found_.at(first).narrow(0, 0, ranks_[i]).clone();
    }
    return out;
  }

 private:
  struct State {
    peft::IncrementalSvd svd;      // of the rank that computes it
    at::Tensor converged, shares;  // [components] float64, 0 or 1; what they explain
    bool known = false, active = true;
  };
  bool is_mine(std::size_t i) const {
    return i % static_cast<std::size_t>(group_.size()) == static_cast<std::size_t>(group_.rank());
  }
  std::vector<at::Tensor> shares() const {
    std::vector<at::Tensor> out;
    for (const auto& state : states_) out.push_back(state.shares);
    return out;
  }
  at::Tensor of_all(std::size_t i) {
    const auto& svd = states_[i].svd;
    auto widths = at::zeros({1}, at::kLong);
    if (is_mine(i)) widths.fill_(svd.components().size(1));
    group_.all_reduce(widths, comm::ReduceOp::kSum)->wait();
    auto out = at::zeros({ranks_[i], widths.item<std::int64_t>()}, at::kFloat);
    if (is_mine(i)) {
      out.copy_(svd.components().narrow(0, 0, ranks_[i]));
      if (settings_.whiten) out.div_(at::sqrt(svd.singular_values().narrow(0, 0, ranks_[i])).unsqueeze(1));
    }
    group_.all_reduce(out.view({-1}), comm::ReduceOp::kSum)->wait();
    return out;
  }

  const std::vector<EvaLayer>& layers_;
  const peft::EvaSettings& settings_;
  comm::Communicator& group_;
  std::vector<State> states_;
  std::vector<std::int64_t> ranks_;
  std::map<std::size_t, at::Tensor> found_;
};

std::string line_of(const std::vector<std::int64_t>& ranks, std::int64_t batches) {
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
  const auto none = std::count(ranks.begin(), ranks.end(), 0);
  return fmt::format("EVA: {} layers, ranks {} to {}{}, from {} batches", ranks.size(), *least, *most,
                     none > 0 ? fmt::format(" ({} without an adapter)", none) : "", batches);
}

}  // namespace

std::shared_ptr<const peft::Lora> asks_for_eva(const std::shared_ptr<const peft::PeftMethod>& method) {
  auto lora = std::dynamic_pointer_cast<const peft::Lora>(method);
  return lora && lora->init_lora_weights == "eva" ? lora : nullptr;
}

EvaStart find_eva_start(const Assembled& base, const AssembleOptions& options, train::Trainable& rows,
                        comm::Communicator& group) {
  const auto wanted = asks_for_eva(options.method);
  const auto settings = peft::read_eva_settings(wanted->eva_config);
  auto [layers, others] = targets_of(*wanted, options, settings);
  std::vector<std::string> names;
  for (const auto& layer : layers) names.push_back(layer.name);
  const at::NoGradGuard no_grad;
  rows.set_training(false);
  const auto observe = [&](peft::InputObserver& observer) {
    peft::observe_inputs(*base.model, names, settings, observer, base.config.vocab_size);
  };
  InputHashes hashes(layers.size());
  observe(hashes);
  (void)rows.loss(0, 0, 1.0);
  peft::join_equal_inputs(layers, hashes.keys(layers, group));
  Components components(layers, settings, group);
  observe(components);
  std::int64_t batches = 0;
  for (; components.go_on(); ++batches) {
    if (batches == rows.batches_per_epoch()) {
      if (const auto layer = components.first_unknown())
        refuse_eva_start(
            fmt::format("no batch has the {} tokens that '{}' needs; larger batches, a smaller r or rho, or "
                        "use_label_mask false",
                        layers[*layer].components, layers[*layer].name));
    }
    if (batches == kMostEvaBatches)
      refuse_eva_start(fmt::format("the components have not converged after {} batches; lower tau", batches));
    (void)rows.loss(0, batches % rows.batches_per_epoch(), 1.0);
    components.share();
  }
  auto method = std::make_shared<peft::Lora>(peft::with_ranks(*wanted, layers, components.ranks(), others));
  return {method, components.values(), line_of(components.ranks(), batches)};
}

}  // namespace tessera::tasks
