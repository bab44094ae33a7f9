#pragma once
// What the parts of a rank's memory are called in tables, on the host and on a GPU.

namespace tessera::estimate {

inline constexpr const char *kTrained = "weights that train", *kFrozen = "frozen weights", *kPacked = "packed weights",
                            *kState = "optimizer state", *kSums = "gradients", *kGathered = "gathered units",
                            *kKept = "activations kept for backward", *kWorking = "a block's backward",
                            *kLoss = "logits and their gradient", *kAccumulated = "gradients of earlier forwards";

}  // namespace tessera::estimate
