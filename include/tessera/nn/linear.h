#pragma once
// y = x W^T + b, with a slot for a low-rank adapter (LoRA, Hu et al. 2021): y += scaling * B A dropout(x). With a
// magnitude vector m (DoRA, Liu et al. 2024) each output is also scaled: y = m / |W + scaling B A| * (x W^T + scaling *
// B A dropout(x)) + b, where the row norms |.| follow the adapter but take no gradient.
#include <memory>
#include <string>

#include "tessera/nn/adapter.h"
#include "tessera/nn/block.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

class Linear;

/// The adapter in a Linear. `a` [rank, in] and `b` [out, rank] are modules of their own (so a wrap policy can make them
/// units; not with DoRA, which reads their weights).
struct LowRankAdapter {
  std::shared_ptr<Linear> a, b;
  at::Tensor magnitude;  // [out], undefined without DoRA
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

  bool may_be_unit() const override { return !read_by_parent_; }
  /// Registers "lora_A.default" and "lora_B.default" (float32, without memory), with DoRA also
  /// "lora_magnitude_vector.default.weight", below this module and freezes nothing.
  void attach_adapter(const AdapterShape& shape);
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
  at::Tensor squares_;           // [out] float32, of the frozen weight's rows; computed when DoRA first needs it
  bool read_by_parent_ = false;  // a factor of a DoRA adapter
};

}  // namespace tessera::nn
