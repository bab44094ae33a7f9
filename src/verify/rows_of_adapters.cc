#include "verify/rows_of_adapters.h"

#include <set>

namespace tessera::verify {

at::Tensor logits_by_row(const tasks::Assembled& loaded, const models::ModelInput& in,
                         const std::vector<std::string>& adapters, std::int64_t first) {
  at::Tensor logits;
  for (const auto& adapter : std::set<std::string>(adapters.begin(), adapters.end())) {
    loaded.several->use(loaded.several->number_of(adapter));
    const auto own = (*loaded.model)(in).logits.cpu();
    if (!logits.defined()) logits = own.clone();
    for (std::int64_t row = 0; row < own.size(0); ++row)
      if (adapters.at(static_cast<std::size_t>(first + row)) == adapter)
        logits.select(0, row).copy_(own.select(0, row));
  }
  return logits;
}

}  // namespace tessera::verify
