#pragma once
// NaN and infinity in what is trained: where they are, and what a run does about them.
#include <string>

namespace tessera::fsdp {
class FullyShardedDataParallel;
}

namespace tessera::train {

/// What a step does whose loss or gradient is not finite.
enum class NanPolicy {
  kStop,  // the run ends with an error; the last checkpoint stays
  kSkip   // parameters and optimizer state stay as they were; the step counts, the schedule waits
};

enum class Weights {
  kTrained,
  kFrozen,  // but for packed ones, and for all where they lie on a disk: reading them takes long
};

/// Collective. "NaN in 'layers.1.norm.weight' of unit 'layers.1' (rank 1)": of the first parameter, in the order of
/// registration, whose value or gradient is not finite; the same on every rank. Empty: all are finite.
std::string first_non_finite_weight(const fsdp::FullyShardedDataParallel& model, Weights which);
std::string first_non_finite_gradient(const fsdp::FullyShardedDataParallel& model);

}  // namespace tessera::train
