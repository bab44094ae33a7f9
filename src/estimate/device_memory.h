#pragma once
// The bytes that a rank holds on its GPU at its peak, by formula: docs/guides/large_models.md, "On a GPU". They are the
// bytes that libtorch's allocator has given out; what CUDA itself takes comes on top.
#include <cstdint>
#include <vector>

#include "estimate/rank_memory.h"

namespace tessera::estimate {

/// What the largest operations of a block work on, in elements a token where nothing else is said.
struct DeviceShape {
  std::int64_t inner = 0;           // what a feed-forward layer's last projection is given
  std::int64_t made = 0;            // what its other projections make
  std::int64_t attended = 0;        // what an attention gives
  std::int64_t keys = 0;            // of an attention; as many values
  std::int64_t heads = 0;           // of all attentions that keep a number for each query and head
  std::int64_t heads_largest = 0;   // of those in one block
  std::int64_t largest_matrix = 0;  // elements of the largest matrix in a block; of experts all that compute as one
  std::int64_t expert_rows = 0;     // of a token, one for each expert that it goes to; 0: no mixture
  bool tied = true;                 // the output head is the table of tokens
  std::int64_t head_numel = 0;      // elements of the head
};
DeviceShape device_shape(const std::vector<ModelTensor>& tensors);

struct DeviceJob {
  config::ShardingStrategy strategy = config::ShardingStrategy::kFullShard;
  int ranks = 1, hosts = 1;    // ranks of one host
  bool low_precision = false;  // bf16 or fp16 computation, fp32 masters
  /// fsdp_offload_params: slices, gradients and optimizer state are in host memory.
  bool state_on_host = false;
  bool optimizer_on_host = false;  // computes_on_host()
  bool head_trains = false;
  DeviceShape shape = {};
  ActivationShape activations = {}, encoder = {};
  AdapterActivations adapters = {}, encoder_adapters = {};  // of this batch
  BatchShape batch = {};
};

/// Whether the output head, or the table that it is tied to, is among what trains.
bool head_trains(const DeviceShape& shape, const std::vector<SizedParameter>& parameters);

/// Of the host's memory where all is on the GPU, but for an optimizer that computes on the CPU; `largest`: elements of
/// the largest parameter.
RankPlan host_beside_device(const ModelSizes& sizes, const DeviceJob& job, std::int64_t largest);

RankPlan plan_device(const ModelSizes& sizes, const DeviceJob& job);

}  // namespace tessera::estimate
