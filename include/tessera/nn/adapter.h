#pragma once
// The seam of parameter-efficient fine-tuning: a Linear or an Embedding that holds an adapter leaves its call to it.
// The layers know no method; peft makes the adapters.
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/nn/block.h"

namespace tessera::nn {

class Linear;
class Embedding;

/// The top of what an adapter adds to the module tree: the parameters at and below it are the adapter's, not the base
/// model's. `name`: as the printed model shows it ("ModuleDict").
class AdapterModule : public torch::nn::Module {
 public:
  explicit AdapterModule(std::string name) : torch::nn::Module(std::move(name)) {}
};

/// Full names of the parameters below `root` that belong to adapters.
std::set<std::string> adapter_parameters(const torch::nn::Module& root);

/// What an adapted layer calls in place of its own product. Its parameters lie in modules that attach() registers below
/// the layer, so units gather them with the layer's own.
class Adapter {
 public:
  using Modules = std::vector<std::pair<std::string, std::shared_ptr<AdapterModule>>>;

  virtual ~Adapter() = default;
  /// What the printed model shows in place of the layer's class, for example "lora.Linear".
  virtual std::string class_name() const = 0;
  const Modules& modules() const { return modules_; }

 protected:
  AdapterModule& add_module(const std::string& name, const std::string& printed);

 private:
  Modules modules_;
};

/// The factors of a low-rank adapter. a: [rank, in], b: [out, rank].
struct LowRank {
  at::Tensor a, b;
  double scaling = 1.0;
  double dropout = 0.0;  // of the adapter's input; active whenever it is not 0
};

class LinearAdapter : public Adapter {
 public:
  /// x: [..., in_features]; result: [..., out_features], in the dtype of the layer's product. The layer's own product
  /// is layer.product(x); a fused product reads layer.handle() and layer.bias instead.
  virtual at::Tensor forward(const Linear& layer, const at::Tensor& x) = 0;
  /// Set where, as things stand, forward() is layer.product(x) + scaling * dropout(x) A^T B^T and reads nothing else:
  /// many layers may then compute as one (nn/ops/grouped_linear.h).
  virtual std::optional<LowRank> plain_low_rank(const Linear&) const { return std::nullopt; }
};

class EmbeddingAdapter : public Adapter {
 public:
  /// ids: integers, [...]; result: [..., dim]. The layer's own rows are layer.rows(ids).
  virtual at::Tensor forward(const Embedding& layer, const at::Tensor& ids) = 0;
  /// The matrix of a tied head, [num, dim]; undefined: the layer's own weight.
  virtual at::Tensor head_weight(const Embedding&) { return {}; }
};

/// While one lives, layers and models on its thread compute as if they had no adapter: the base model of a pass without
/// gradients, for example the reference that a policy is compared with.
class AdaptersOff {
 public:
  AdaptersOff();
  ~AdaptersOff();
  AdaptersOff(const AdaptersOff&) = delete;
  AdaptersOff& operator=(const AdaptersOff&) = delete;
  static bool active();

 private:
  bool before_;
};

/// A layer that may hold an adapter of the type A, one at a time.
template <class A>
class Adaptable : public Layer {
 public:
  /// Registers the adapter's modules below this layer and freezes nothing.
  void attach(std::shared_ptr<A> adapter) {
    detach();
    adapter_ = std::move(adapter);
    for (const auto& [name, module] : adapter_->modules()) {
      register_module(name, module);
      module->train(is_training());
    }
  }
  void detach() {
    if (!adapter_) return;
    for (const auto& [name, module] : adapter_->modules()) unregister_module(name);
    adapter_.reset();
  }
  /// Null: there is none, or adapters are off.
  A* adapter() const { return AdaptersOff::active() ? nullptr : adapter_.get(); }

 private:
  std::shared_ptr<A> adapter_;
};

}  // namespace tessera::nn
