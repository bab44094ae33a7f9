#pragma once
// Where in its stack a decoder layer runs: layers may run at several places (CausalLm::set_layer_order).
#include "base/scoped_value.h"

namespace tessera::models {

/// While one lives, the layer that this thread runs is at this place.
class LayerPlace {
 public:
  explicit LayerPlace(int place) : place_(now_, place) {}
  /// -1: outside of a layer.
  static int now() { return now_; }

 private:
  static thread_local int now_;
  ScopedValue<int> place_;
};

}  // namespace tessera::models
