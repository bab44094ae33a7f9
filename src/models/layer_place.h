#pragma once
// Where in its stack a decoder layer runs: layers may run at several places (CausalLm::set_layer_order).

namespace tessera::models {

/// While one lives, the layer that this thread runs is at this place.
class LayerPlace {
 public:
  explicit LayerPlace(int place) : before_(now_) { now_ = place; }
  ~LayerPlace() { now_ = before_; }
  LayerPlace(const LayerPlace&) = delete;
  LayerPlace& operator=(const LayerPlace&) = delete;
  /// -1: outside of a layer.
  static int now() { return now_; }

 private:
  static thread_local int now_;
  int before_;
};

}  // namespace tessera::models
