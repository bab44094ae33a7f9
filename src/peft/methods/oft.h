#pragma once
// OFT (Qiu et al. 2023; Liu et al. 2024; OFTv2: Qiu et al. 2025): blocks of the input are rotated, R = (I + Q)(I -
// Q)^-1 of a skew-symmetric Q, exactly or by the first terms of its series. COFT keeps Q small.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Oft final : public TransformMethod {
 public:
  std::int64_t r = 0, oft_block_size = 32;  // one of them is 0: follows from the other
  bool coft = false;                        // train/block_projection.h
  double eps = 6e-5;                        // of COFT
  double module_dropout = 0;                // of blocks; PEFT 0.21 keeps the number and drops nothing
  bool block_share = false;                 // one block for all
  bool use_cayley_neumann = true;
  std::int64_t num_cayley_neumann_terms = 5;
  bool init_weights = true;  // zeros; false: normal

  /// What the names of the stored blocks end with: [blocks, n (n - 1) / 2], upper triangles by rows.
  static constexpr const char* kBlocks = "oft_R.default.weight";
  /// COFT's: how large the norm of a block's matrix may be where so many blocks are stored.
  double radius(std::int64_t blocks) const;

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Oft>(*this); }
  std::string type() const override { return "OFT"; }
  std::string class_name() const override { return "oft.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;

 protected:
  bool takes_transposed() const override { return false; }
  at::Tensor transformed(const LayerSizes& sizes, const at::Tensor& x, const Tensors& t) const override;

 private:
  struct Blocks {
    std::int64_t count, size;
  };
  Blocks blocks_of(const LayerSizes& layer) const;
  /// Of the stored blocks.
  at::Tensor rotations(const at::Tensor& weight, std::int64_t size) const;
};

}  // namespace tessera::peft
