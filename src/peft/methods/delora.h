#pragma once
// DeLoRA (Bini et al. 2025): W + B diag(lambda / (r |a_i| |b_i|)) A diag(w), a_i the rows of A and b_i the columns of
// B, w the norms of W's columns before training. lambda, one number, trains and bounds the change.
#include "peft/methods/tensor_method.h"

namespace tessera::peft {

class DeLora final : public FactorMethod {
 public:
  std::int64_t r = 8;
  double delora_lambda = 15;  // at first
  double module_dropout = 0;  // of the adapter's input
  bool init_weights = true;   // B zero; false: random
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> lambda_pattern;

  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<DeLora>(*this); }
  std::string type() const override { return "DELORA"; }
  std::string class_name() const override { return "delora.DeloraLinear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  std::vector<AddedTensor> added(const LayerSizes& layer) const override;
  std::vector<FromWeight> from_weights(const nn::HookedModule& model, std::uint64_t seed) const override;

 protected:
  DeltaFactors factors(const LayerSizes& sizes, const Tensors& t) const override;
  bool takes_transposed() const override { return false; }

 private:
  std::int64_t rank_of(const std::string& layer) const;
};

}  // namespace tessera::peft
