#pragma once
// How much state an optimizer keeps for a parameter, by the names of Trainer's --optim.
#include <cstdint>
#include <string>
#include <vector>

#include "estimate/model_tensors.h"

namespace tessera::estimate {

struct SizedParameter;

bool is_known_optimizer(const std::string& optim);

/// GaLore and APOLLO under all their names.
std::vector<std::string> low_rank_optimizers();

/// Where parameters lie on a GPU, the optimizer still computes on the CPU and keeps its state there
/// (optim/host_optimizer.h).
bool computes_on_host(const std::string& optim);

/// Bytes for the whole parameter, all ranks together. 8-bit optimizers keep embeddings and parameters below 4096
/// elements in 32 bits, as bitsandbytes does, else a byte for each state and a float32 for each 256 elements of it.
/// ConfigError for a name that is not known.
std::int64_t optimizer_state_bytes(const std::string& optim, const std::string& parameter,
                                   const std::vector<std::int64_t>& shape);

/// Whether it is the weight of an nn.Linear: GPT-2's Conv1D and tables are none.
bool is_linear_layer(const ModelTensor& t);

/// What GaLore and APOLLO keep of a matrix [rows, columns] that they see through a low rank (optim/projection.h), each
/// rank for itself; and what the update adds to it.
struct LowRankBytes {
  std::int64_t kept, update;
};
struct LowRankShape {
  std::int64_t rank = 128;
  std::string proj_type = "std";
};
/// "rank=64,proj_type=left" of --optim_args; other keys change no size. ConfigError for a rank that is no positive
/// number, and a proj_type that is not known.
LowRankShape parse_low_rank(const std::string& optim_args);
LowRankBytes low_rank_bytes(const std::string& optim, const LowRankShape& shape, std::int64_t rows,
                            std::int64_t columns);

/// Counts that as the optimizer's bytes of a parameter.
void count_low_rank(SizedParameter& parameter, const std::string& optim, const LowRankShape& shape,
                    const std::vector<std::int64_t>& sizes);

/// What AdaLoRA keeps beside the optimizer for a parameter of its adapters, all ranks together: the averages of its
/// sensitivity and of that one's uncertainty.
constexpr std::int64_t rank_allocation_bytes(std::int64_t numel) {
  return 2 * 4 * numel;
}

}  // namespace tessera::estimate
