#pragma once
// BOFT (Liu et al. 2024): a product of block-wise rotations between butterfly permutations turns the input; a trained
// scale for each output. Here every butterfly factor counts (PEFT without its CUDA extension silently uses one).
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Boft final : public TransformMethod {
 public:
  std::int64_t boft_block_size = 4, boft_block_num = 0;  // one of them is 0: follows from the other
  std::int64_t boft_n_butterfly_factor = 1;
  double boft_dropout = 0;   // of the blocks of one factor
  bool init_weights = true;  // no rotation; false: random

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Boft>(*this); }
  std::string type() const override { return "BOFT"; }
  std::string class_name() const override { return "boft.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;

 protected:
  bool takes_transposed() const override { return false; }
  at::Tensor transformed(const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const override;
  at::Tensor scale(const Tensors& t) const override { return t[1].flatten(); }
};

}  // namespace tessera::peft
