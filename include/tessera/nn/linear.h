#pragma once
// y = x W^T + b, or what an adapter makes of it.
#include <string>

#include "tessera/nn/adapter.h"
#include "tessera/nn/block.h"
#include "tessera/nn/weight.h"

namespace tessera::nn {

/// x: [..., in_features]; result: [..., out_features], in the dtype of the weight's product.
class Linear : public Adaptable<LinearAdapter> {
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
  /// x W^T + b, whatever adapter there is.
  at::Tensor product(const at::Tensor& x) const;

  at::Tensor weight;  // [out_features, in_features], or as weight_layout() says
  at::Tensor bias;    // [out_features] or undefined

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  std::int64_t in_features_, out_features_;
  WeightLayout layout_;
};

}  // namespace tessera::nn
