#pragma once
// y = x W^T + b, or what an adapter makes of it.
#include <optional>
#include <string>

#include "tessera/nn/adapter.h"
#include "tessera/nn/block.h"
#include "tessera/nn/packed_weight.h"
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
  /// That of the dense weight in files: pack() leaves it as it was.
  WeightLayout layout_in_files() const { return layout_in_files_; }
  /// Keeps the weight as the codec does: `weight` becomes the codes, frozen, and a child "weight" has the statistics.
  /// A weight with values is packed; one without memory stays without, and takes its fields from a source. The codec's
  /// matrix is [out_features, in_features] whatever layout the layer had, as bitsandbytes keeps GPT-2's Conv1D.
  /// compute: as Weight takes it (bitsandbytes' compute_dtype).
  void pack(std::shared_ptr<const tensor::Codec> codec, std::optional<at::ScalarType> compute = {});
  /// Null: the weight is dense.
  std::shared_ptr<const tensor::Codec> codec() const { return packed_ ? packed_->matrix()->codec : nullptr; }
  /// The weight as products see it, [out_features, in_features].
  Weight handle() const;
  /// Whether a call is x W^T + b with the weight's values: there is no adapter, and the codec does not round inputs, as
  /// LLM.int8() does in inference.
  bool multiplies_values() const;
  /// x W^T + b, whatever adapter there is.
  at::Tensor product(const at::Tensor& x) const;

  at::Tensor weight;  // [out_features, in_features], or as weight_layout() says; the codes of a packed one
  at::Tensor bias;    // [out_features] or undefined

 protected:
  at::Tensor forward_impl(at::Tensor x) override;

 private:
  std::int64_t in_features_, out_features_;
  WeightLayout layout_, layout_in_files_;
  std::shared_ptr<PackedWeight> packed_;
  std::optional<at::ScalarType> compute_;  // of a packed weight's products
};

}  // namespace tessera::nn
