#pragma once
// What a step of a job computes, gathers and reduces, unit by unit.
#include <cstdint>
#include <string>
#include <vector>

#include "estimate/plan_request.h"

namespace tessera::estimate {

/// What a rank computes: floating point operations of products, and bytes that pass through memory beside them.
struct Work {
  double flops = 0, bytes = 0;
  Work operator+(const Work& other) const { return {flops + other.flops, bytes + other.bytes}; }
};

/// A block, or the root with what lies in no block. Of one micro-batch of a rank.
struct UnitShape {
  std::string name = {};             // empty: the root
  Work forward = {}, backward = {};  // without recomputation
  std::vector<std::int64_t> gathered =
      {};                                // bytes of each segment that a gather moves, whole; what is mapped is left out
  std::int64_t reduced = 0;              // trainable elements that are reduced when its backward has ended
  std::vector<std::int64_t> heads = {};  // of the root: large ones that are reduced before the blocks,
  std::vector<std::int64_t> tables = {};  // and after them
};

struct StepShape {
  UnitShape root;
  std::vector<UnitShape> blocks;  // in the order of forwards
  std::int64_t trainable = 0, state_bytes = 0;
  std::int64_t compute_bytes = 4;  // of an element, of what units compute with and gradients travel in
  std::int64_t tokens = 0;         // of a rank in a micro-batch
  std::int64_t checkpointing = 0;  // the first of every so many blocks is computed again; 0: none

  bool recomputes(std::size_t block) const {
    return checkpointing > 0 && block % static_cast<std::size_t>(checkpointing) == 0;
  }
  bool reduces_alone() const { return !root.heads.empty() || !root.tables.empty(); }
};

/// Of a micro-batch of a rank, recomputation included.
double step_flops(const StepShape& shape);

StepShape step_shape(const PlanRequest& request, const std::vector<ModelTensor>& tensors);

}  // namespace tessera::estimate
