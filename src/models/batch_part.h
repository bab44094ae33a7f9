#pragma once
// Which of a batch's parts (ModelInput::parts) a decoder computes.
#include <cstddef>

#include "base/scoped_value.h"
#include "tensor/rng.h"

namespace tessera::models {

/// While one lives, this thread computes this part: what it draws is the part's, and layers with several adapters take
/// the part's.
class BatchPart {
 public:
  explicit BatchPart(std::size_t part) : draws_(part), number_(now_, static_cast<int>(part)) {}
  /// -1: the batch has no parts.
  static int now() { return now_; }

 private:
  static thread_local int now_;
  tensor::PartScope draws_;
  ScopedValue<int> number_;
};

}  // namespace tessera::models
