#pragma once
// LoRA-FA (Zhang et al. 2023) as peft.optimizers.LoraFAOptimizer has it: lora_A is frozen, and the gradient of lora_B
// becomes the one whose step in the weight is nearest to full fine-tuning's: g (A A^T)^-1 / scaling^2, in bfloat16.
// All else is AdamW as transformers had it, which decays after the step.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

struct LoraFaOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;
};

/// What a row of a lora_B [out, r] of gradients is multiplied by.
struct RowProjection {
  std::int64_t rank = 0;
  std::vector<float> inverse;  // [r, r] of (A A^T + 1e-8 I)^-1
  float scale = 1;             // 1 / scaling^2
};

class LoraFa final : public FlatOptimizer {
 public:
  LoraFa(std::vector<at::Tensor> parameters, std::vector<ParameterSlice> slices, const LoraFaOptions& options,
         std::shared_ptr<comm::Communicator> group);
  /// By the names of the lora_B; parameters without one are updated as their gradients say. Before the first step.
  void set_projections(std::map<std::string, RowProjection> projections) { projections_ = std::move(projections); }
  void step() override;
  bool collective() const override { return group_ && group_->size() > 1; }
  bool runs_anywhere() const override { return false; }

 private:
  /// A row that lies in several slices: its elements [begin, end) are here.
  struct SplitRow {
    std::size_t slice = 0, slot = 0;
    std::int64_t row = 0, begin = 0, end = 0;
  };
  Update update(double lr, double weight_decay) const override;
  const RowProjection* projection_of(const ParameterSlice& slice) const;
  void find_split_rows();
  void project();
  LoraFaOptions options_;
  std::shared_ptr<comm::Communicator> group_;
  std::map<std::string, RowProjection> projections_;
  bool found_ = false;
  std::vector<SplitRow> split_rows_;
  std::int64_t slots_ = 0, widest_ = 0;
};

}  // namespace tessera::optim
