#pragma once
// Sums of task vectors as PEFT makes them (peft/utils/merge_utils.py): plain sums; TIES (Yadav et al. 2023: trim, elect
// signs, mean of those that agree); DARE (Yu et al. 2023: drop at random, rescale); magnitude pruning.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::peft {

enum class Pruning { kNone, kMagnitude, kRandom };
enum class MajoritySign { kTotal, kFrequency };

/// How tensors become one.
struct TaskRule {
  Pruning pruning = Pruning::kNone;
  bool elects_signs = false;                 // TIES; a plain weighted sum otherwise
  double density = 1.0;                      // the part of the values that pruning keeps; from 1 on it keeps all
  MajoritySign sign = MajoritySign::kTotal;  // of sums, or of counts
  std::uint64_t seed = 0;                    // of random pruning
};

struct TaskTensor {
  at::Tensor values;  // float32, all of one shape
  double weight = 1.0;
  std::string key;  // with the seed decides which values random pruning drops: neither order nor other tensors do
};

/// The combined tensor, float32, of the same shape. At least one part.
at::Tensor combine_tasks(const std::vector<TaskTensor>& parts, const TaskRule& rule);

}  // namespace tessera::peft
