#pragma once
#include <vector>

namespace tessera::peft {

/// An adapter's number; the base model alone.
inline constexpr int kBaseModel = -1;

/// Which of a model's adapters computes from now on: one for all rows, or of a batch in parts (ModelInput::parts) one
/// for each. Layers see tokens without padding, of all rows at once, so rows of different adapters are computed one
/// adapter after another.
struct AdapterChoice {
  int number = kBaseModel;
  std::vector<int> of_parts = {};  // empty: the batch has none

  /// Error where a layer is computed again outside of its decoder layer, so that nobody knows its part.
  int now() const;
};

}  // namespace tessera::peft
