#pragma once
// y = x W^T + b, with a slot for a low-rank adapter (LoRA, Hu et al. 2021): y += scaling * B A dropout(x).
#include <memory>
#include <string>

#include "tessera/nn/block.h"

namespace tessera::nn {

class Linear;

/// How a Linear keeps its weight: PyTorch's [out, in], or the [in, out] of GPT-2's Conv1D (fan_in_fan_out in PEFT).
enum class WeightLayout { kOutIn, kInOut };

/// The adapter in a Linear. `a` [rank, in] and `b` [out, rank] are modules of their own (so a wrap policy can make them
/// units).
struct LowRankAdapter {
  std::shared_ptr<Linear> a, b;
  double scaling = 1.0;
  double dropout = 0.0;
};

/// x: [..., in_features]; result: [..., out_features], in the dtype of the weight's product.
class Linear : public Layer {
 public:
  /// Parameters have no memory until weights are loaded, reset_parameters() is called, or the module is sharded.
  Linear(std::int64_t in_features, std::int64_t out_features, bool with_bias = true, at::ScalarType dtype = at::kFloat,
         WeightLayout layout = WeightLayout::kOutIn);

  std::string class_name() const override;
  std::string extra_repr() const override;
  std::int64_t in_features() const { return in_features_; }
  std::int64_t out_features() const { return out_features_; }
  WeightLayout weight_layout() const { return layout_; }
  /// The weight as [out_features, in_features], a view.
  at::Tensor matrix() const { return layout_ == WeightLayout::kInOut ? weight.t() : weight; }

  /// Registers "lora_A.default" and "lora_B.default" (float32, without memory) below this module and freezes nothing.
  void attach_adapter(std::int64_t rank, double scaling, double dropout);
  void remove_adapter();
  const LowRankAdapter* adapter() const { return adapter_.get(); }

  at::Tensor weight;  // [out_features, in_features], or as weight_layout() says
  at::Tensor bias;    // [out_features] or undefined

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  at::Tensor adapted(const at::Tensor& x);
  std::int64_t in_features_, out_features_;
  WeightLayout layout_;
  std::unique_ptr<LowRankAdapter> adapter_;
};

}  // namespace tessera::nn
