#pragma once
// Which of a batch's parts (ModelInput::parts) a decoder computes.
#include <cstddef>

#include "tensor/rng.h"

namespace tessera::models {

/// While one lives, this thread computes this part: what it draws is the part's, and layers with several adapters take
/// the part's.
class BatchPart {
 public:
  explicit BatchPart(std::size_t part) : draws_(part), before_(now_) { now_ = static_cast<int>(part); }
  ~BatchPart() { now_ = before_; }
  BatchPart(const BatchPart&) = delete;
  BatchPart& operator=(const BatchPart&) = delete;
  /// -1: the batch has no parts.
  static int now() { return now_; }

 private:
  static thread_local int now_;
  tensor::PartScope draws_;
  int before_;
};

}  // namespace tessera::models
