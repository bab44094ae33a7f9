#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/base/error.h"
#include "tessera/optim/optimizer.h"

namespace tessera::optim {

double schedule(const std::string& name, std::int64_t step, std::int64_t warmup_steps, std::int64_t total_steps) {
  const auto warm = [&] {
    return static_cast<double>(step) / static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
  };
  const auto rest = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup_steps));
  if (name == "constant") return 1.0;
  if (name == "constant_with_warmup") return step < warmup_steps ? warm() : 1.0;
  if (name == "linear")
    return step < warmup_steps ? warm() : std::max(0.0, static_cast<double>(total_steps - step) / rest);
  if (name == "cosine") {
    if (step < warmup_steps) return warm();
    const auto progress = static_cast<double>(step - warmup_steps) / rest;
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
  }
  throw ConfigError(
      "lr_scheduler_type: expected linear, cosine, constant or constant_with_warmup, found '" + name + "'",
      "lr_scheduler_type");
}

}  // namespace tessera::optim
