#pragma once
// COFT (Qiu et al. 2023): a block's skew-symmetric matrix stays within a ball around zero. PEFT projects the stored
// blocks whenever they are used, so the optimizer's step begins at the projected ones; what a file holds is what the
// last step made of them.
#include <memory>
#include <vector>

#include "peft/methods/oft.h"
#include "train/wrapped_optimizer.h"

namespace tessera::train {

/// Projects the blocks of all layers, then steps another optimizer.
class BlockProjectingOptimizer final : public WrappedOptimizer {
 public:
  /// method: what the model was adapted with, with coft.
  BlockProjectingOptimizer(std::unique_ptr<optim::Optimizer> inner, fsdp::FullyShardedDataParallel& model,
                           const peft::Oft& method);
  void step() override;

 private:
  /// Of a layer's blocks, what lies on this rank.
  struct Part {
    optim::ParameterSlice slice;
    std::int64_t first = 0;  // its first block among those of all layers
    double radius = 0;
    std::int64_t columns() const { return slice.shape.at(1); }
    std::int64_t block_of(std::int64_t element) const { return first + (slice.offset + element) / columns(); }
  };
  std::vector<Part> parts_;
  std::int64_t blocks_ = 0;
};

}  // namespace tessera::train
