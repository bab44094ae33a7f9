#pragma once
// Rows of a batch that take different adapters of one model, as PEFT's argument adapter_names has it.
#include <string>
#include <vector>

#include "tasks/assemble.h"

namespace tessera::verify {

/// The logits, each row's with its adapter. Collective; adapters: by row of the whole batch, alike on every rank;
/// first: the first row of this rank's part, `in`.
at::Tensor logits_by_row(const tasks::Assembled& loaded, const models::ModelInput& in,
                         const std::vector<std::string>& adapters, std::int64_t first);

}  // namespace tessera::verify
