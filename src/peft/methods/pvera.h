#pragma once
// PVeRA (2025): VeRA whose inner numbers are drawn from a normal distribution in training. A has 2 r rows: the first
// half gives the means, the second the logarithms of the variances. Merged and, by default, in inference the means
// count.
#include "peft/methods/vera.h"

namespace tessera::peft {

class Pvera final : public Vera {
 public:
  bool sample_at_inference = false;
  nlohmann::json generator_seed;  // of the numbers that are drawn; null: the run's

  Pvera() : Vera("pvera", 2) {}
  std::unique_ptr<PeftMethod> clone() const override { return std::make_unique<Pvera>(*this); }
  std::string type() const override { return "PVERA"; }
  std::string class_name() const override { return "pvera.Linear"; }
  void bind(ConfigKeys& keys) override;
  void check() const override;
  at::Tensor output(const nn::Linear& layer, const LayerSizes& sizes, const at::Tensor& x,
                    const Tensors& t) const override;

 private:
  tensor::RandomKey next_draw(const std::string& layer) const;
};

}  // namespace tessera::peft
