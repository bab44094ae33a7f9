#include "tessera/optim/optimizer.h"

namespace tessera::optim {

void Optimizer::zero_grad() {
  for (auto& p : parameters_) p.mutable_grad().reset();
}

}  // namespace tessera::optim
