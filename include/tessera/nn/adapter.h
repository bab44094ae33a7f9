#pragma once
#include <cstdint>

namespace tessera::nn {

/// What a layer's adapter slot is asked to hold.
struct AdapterShape {
  std::int64_t rank = 8;
  double scaling = 1.0;
  double dropout = 0.0;    // before A; ignored by an Embedding
  bool magnitude = false;  // DoRA
};

}  // namespace tessera::nn
