#include "train/method_optimizer.h"

#include "train/block_projection.h"
#include "train/rank_allocation.h"

namespace tessera::train {

std::unique_ptr<optim::Optimizer> with_method(std::unique_ptr<optim::Optimizer> inner,
                                              fsdp::FullyShardedDataParallel& model, peft::PeftMethod* method) {
  if (auto* adalora = dynamic_cast<peft::AdaLora*>(method); adalora && adalora->allocates())
    return std::make_unique<RankAllocatingOptimizer>(std::move(inner), model, *adalora);
  if (const auto* oft = dynamic_cast<const peft::Oft*>(method); oft && oft->coft)
    return std::make_unique<BlockProjectingOptimizer>(std::move(inner), model, *oft);
  return inner;
}

}  // namespace tessera::train
