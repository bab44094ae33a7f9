#pragma once
#include <cstdint>

#include "data/epoch_sampler.h"
#include "tessera/comm/communicator.h"
#include "train/training_arguments.h"

namespace tessera::tasks {

/// Which of so many rows this rank trains on, batch by batch. all_ranks: the batches of all of them instead.
data::SamplerOptions row_sampler(std::int64_t rows, const train::TrainingArguments& arguments,
                                 const comm::Communicator& group, bool all_ranks);

}  // namespace tessera::tasks
