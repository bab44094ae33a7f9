#pragma once
#include <string_view>

namespace tessera {

/// Of Trainer's names of optimizers: one that sees matrices through a low rank (GaLore, APOLLO).
constexpr bool is_low_rank_optimizer(std::string_view optim) {
  return optim.starts_with("galore_") || optim.starts_with("apollo_");
}

}  // namespace tessera
