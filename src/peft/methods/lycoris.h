#pragma once
// What LoHa and LoKr have in common (the LyCORIS family): settings, patterns and the two dropouts.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class LycorisMethod : public DeltaMethod {
 public:
  std::int64_t r = 8;
  double alpha = 8;
  double rank_dropout = 0;    // of the delta's rows
  double module_dropout = 0;  // of the whole delta
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  void check() const override;

 protected:
  void bind_common(ConfigKeys& keys);
  std::int64_t rank_of(const LayerSizes& layer) const;
  double scaling_of(const LayerSizes& layer) const;
  bool takes_transposed() const override { return false; }
  at::Tensor delta_mask(const LayerSizes& sizes) const override;
  /// Whether the kept rows are scaled so that their mean stays.
  virtual bool scales_kept_rows() const = 0;
};

/// Hadamard products of two low-rank matrices (LoHa; Hyeon-Woo et al. 2021, FedPara):
/// alpha / r * (w1_a w1_b) * (w2_a w2_b). That is a matrix of rank r^2, whose factors have the products of all pairs of
/// w1_a's and w2_a's columns, and of w1_b's and w2_b's rows.
class LoHa final : public LycorisMethod {
 public:
  bool init_weights = true;  // w2_b begins with zeros; false: nothing does

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<LoHa>(*this); }
  std::string type() const override { return "LOHA"; }
  std::string class_name() const override { return "loha.Linear"; }
  void bind(ConfigKeys& keys) override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;

 protected:
  at::Tensor delta(const LayerSizes& sizes, const Tensors& t) const override;
  std::int64_t inner(const LayerSizes& sizes) const override { return rank_of(sizes) * rank_of(sizes); }
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;
  bool scales_kept_rows() const override { return true; }
};

/// Kronecker products (LoKr; Yeh et al. 2023): alpha / r * kron(w1, w2), either factor whole or of low rank. y gains
/// w1 X w2^T of the rows X of x as matrices, which is far less work than the layer's product.
class LoKr final : public LycorisMethod {
 public:
  bool decompose_both = false;
  std::int64_t decompose_factor = -1;
  bool rank_dropout_scale = false;
  std::string init_weights = "true";  // true | false | lycoris

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<LoKr>(*this); }
  std::string type() const override { return "LOKR"; }
  std::string class_name() const override { return "lokr.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;

 protected:
  at::Tensor delta(const LayerSizes& sizes, const Tensors& t) const override;
  bool scales_kept_rows() const override { return rank_dropout_scale; }

 private:
  /// The sides of w1 [out_1, in_1] and w2 [out_2, in_2], and which is split into two factors of rank r.
  struct Shape {
    std::int64_t out_1, out_2, in_1, in_2;
    bool split_1, split_2;
  };
  Shape shape_of(const LayerSizes& layer) const;
  std::pair<at::Tensor, at::Tensor> sides(const LayerSizes& sizes, const Tensors& t) const;
};

}  // namespace tessera::peft
