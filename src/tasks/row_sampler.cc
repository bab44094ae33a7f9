#include "tasks/row_sampler.h"

namespace tessera::tasks {

data::SamplerOptions row_sampler(std::int64_t rows, const train::TrainingArguments& arguments,
                                 const comm::Communicator& group, bool all_ranks) {
  const int world = group.size();
  return {.rows = rows,
          .per_device_batch = arguments.per_device_train_batch_size * (all_ranks ? world : 1),
          .rank = all_ranks ? 0 : group.rank(),
          .world_size = all_ranks ? 1 : world,
          .seed = static_cast<std::uint64_t>(arguments.data_seed.value_or(arguments.seed)),
          .shuffle = arguments.train_sampling_strategy != train::SamplingStrategy::kSequential,
          .last_batch = arguments.dataloader_drop_last ? data::LastBatch::kDrop : data::LastBatch::kKeep};
}

}  // namespace tessera::tasks
