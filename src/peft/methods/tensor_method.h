#pragma once
// Methods that add a few small tensors to a linear layer and compute with them through libtorch's own differentiable
// operations. A method of this kind says which tensors it adds and what they do; naming, first values, attaching and
// merging are here. See the three kinds below: a matrix is added (DeltaMethod), two factors of one are (FactorMethod),
// or the layer's input and output are transformed (TransformMethod).
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "peft/method.h"
#include "peft/methods/delta_product.h"
#include "tensor/rng.h"

namespace tessera::peft {

/// The layer that is adapted.
struct LayerSizes {
  std::string name;  // fully qualified
  std::int64_t in = 0, out = 0;
  bool training = false;  // of the call
  std::int64_t smaller() const { return in < out ? in : out; }
  std::int64_t larger() const { return in < out ? out : in; }
};

/// Writes first values; the key depends on the seed and the tensor's name.
using Draw = std::function<void(const at::Tensor&, tensor::RandomKey)>;

/// A tensor below an adapted layer, or below the model (one for all layers). float32.
struct AddedTensor {
  std::string name;  // in PEFT's module tree: "hada_w1_a.default", "oft_R.default.weight"
  std::vector<std::int64_t> sizes;
  Draw draw;
  bool trains = true;
};

/// Values of added tensors in their order, the layer's before the model's.
using Tensors = std::vector<at::Tensor>;

Draw zeros();
Draw constant(double value);
Draw normal(double std, double mean = 0);
/// torch.nn.init.kaiming_uniform_(a=sqrt(5)): uniform, bounded by 1 / sqrt(elements of a row).
Draw kaiming_uniform();
Draw uniform(double bound);

class TensorMethod : public LayerMethod {
 public:
  void check() const override;
  std::vector<std::string> attach(models::Model& model, const models::ModelConfig& family) override;
  std::map<std::string, Fill> first_values(const nn::HookedModule& model, std::uint64_t seed) const override;
  std::string file_name(const std::string& parameter) const override;
  std::string name_in_peft(const std::string& parameter) const override;
  at::Tensor merged(const Slot& slot, const std::string& leaf, const at::Tensor& value,
                    const Values& adapter) const override;

  /// What sits below one layer. ConfigError names the key where the layer is not fit for the settings.
  virtual std::vector<AddedTensor> added(const LayerSizes& layer) const = 0;
  /// What all adapted layers share; called once they are known.
  virtual std::vector<AddedTensor> shared(const std::vector<LayerSizes>&) const { return {}; }
  /// The layer's output, [..., out].
  virtual at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                            const Tensors& t) const = 0;
  /// What W [out, in] becomes, in float32.
  virtual at::Tensor merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const = 0;
  /// What the bias becomes, in float32.
  virtual at::Tensor merged_bias(const at::Tensor& b, const Tensors&) const { return b; }
  /// What the printed model shows: "loha.Linear".
  virtual std::string class_name() const = 0;

 protected:
  std::vector<std::string> default_targets(const models::ModelConfig& family) const override;
  void attach_to(const Slot& slot) const override;
  std::map<std::string, Fill> first_values_of(const Slot& slot, std::uint64_t seed) const override;
  /// PEFT's method takes no layers whose weight lies as [in, out] (GPT-2's Conv1D).
  virtual bool takes_transposed() const { return true; }
  /// target_modules and the keys that go with them; exclude_modules, fan_in_fan_out and bias have some methods only.
  void bind_targets(ConfigKeys& keys);
  /// Refuses a rank or a count that is not positive, and a probability outside [0, 1).
  static void require_positive(const std::string& key, std::int64_t value);
  static void require_probability(const std::string& key, double value);
  /// Refuses an n_frequency that the layer has no places for.
  static void require_places(std::int64_t n_frequency, const LayerSizes& layer);
  /// PEFT's defaults of FourierFT, WaveFT and C3A: LoRA's, but for GPT-2.
  std::vector<std::string> feed_forward_of_gpt2(const models::ModelConfig& family) const;

 private:
  std::vector<AddedTensor> shared_;  // filled by attach()
  Tensors shared_values_;
  std::string first_layer_;
};

/// y = x (W + delta)^T + b, by the delta or by factors of it, whichever is less work (base/factor_order.h).
class DeltaMethod : public TensorMethod {
 public:
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  at::Tensor merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const override;

 protected:
  /// [out, in]; differentiable.
  virtual at::Tensor delta(const LayerSizes& sizes, const Tensors& t) const = 0;
  /// The inner dimension of factors(); 0: there are none.
  virtual std::int64_t inner(const LayerSizes&) const { return 0; }
  /// Of the delta, without dropout; differentiable.
  virtual DeltaFactors factors(const LayerSizes&, const Tensors&) const { return {}; }
  /// In training: what the delta is multiplied by, drawn anew for each call; undefined: nothing.
  virtual at::Tensor delta_mask(const LayerSizes&) const { return {}; }
  /// In training: dropout of the adapter's input.
  virtual double input_dropout() const { return 0; }
};

/// y = x W^T + b + scaling * dropout(x) A^T B^T: DeltaMethod with the factors of delta alone.
class FactorMethod : public TensorMethod {
 public:
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  at::Tensor merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const override;

 protected:
  /// Differentiable. dropout: what applies in training.
  virtual DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const = 0;
};

/// y = scale * (transformed(x) W^T) + b; transformed() is linear in x.
class TransformMethod : public TensorMethod {
 public:
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;
  at::Tensor merged_weight(const LayerSizes& sizes, const at::Tensor& w, const Tensors& t) const override;

 protected:
  /// x: [N, in]; result: the same. Made again in backward, so that x alone is kept.
  virtual at::Tensor transformed(const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const = 0;
  /// [out]; undefined: no scale.
  virtual at::Tensor scale(const Tensors&) const { return {}; }
};

}  // namespace tessera::peft
