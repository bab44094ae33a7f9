#pragma once
// PSOFT (2025): the weight's part of its r largest singular values, B A, is turned within that space: W + s B (R - I)
// A, R a rotation as OFT's, exact or by terms of its series, between two trained scales. A and B follow from W and are
// not in the file.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class Psoft final : public FactorMethod {
 public:
  std::int64_t r = 32;
  double psoft_alpha = 32;  // s = psoft_alpha / r, by which B A is divided
  double psoft_dropout = 0;
  std::string ab_svd_init = "psoft_init";  // the singular values are B's | pissa_init: both have their roots
  std::string psoft_svd = "full";          // lowrank: as torch.svd_lowrank
  std::int64_t psoft_svd_lowrank_niter = 10;
  std::int64_t random_seed = 0;  // of lowrank
  bool psoft_orth = true;        // false: R is any matrix
  bool psoft_mag_b = true, psoft_mag_a = true;
  bool use_cayley_neumann = false;
  std::int64_t num_cayley_neumann_terms = 5;
  nlohmann::json cayley_neumann_eps;  // the largest norm of the matrix in the series; null: any
  bool init_weights = true;           // R = I; false: near it

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Psoft>(*this); }
  std::string type() const override { return "PSOFT"; }
  std::string class_name() const override { return "psoft.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  std::vector<FromWeight> from_weights(const nn::HookedModule& model, std::uint64_t seed) const override;
  std::vector<FromWeight> from_weights_of_saved(const nn::HookedModule& model) const override;
  std::vector<std::string> file_names(const std::string& parameter) const override;

 protected:
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;
  bool takes_transposed() const override { return false; }

 private:
  double scaling() const { return psoft_alpha / static_cast<double>(r); }
  /// [r, r], of what trains.
  at::Tensor turn(const Tensors& t) const;
};

}  // namespace tessera::peft
