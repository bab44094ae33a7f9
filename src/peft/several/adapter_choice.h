#pragma once

namespace tessera::peft {

/// An adapter's number; the base model alone.
inline constexpr int kBaseModel = -1;

/// Which of a model's adapters computes from now on: one for all rows. Layers see tokens without padding, of all rows
/// at once, so rows of different adapters are computed one adapter after another.
struct AdapterChoice {
  int number = kBaseModel;
};

}  // namespace tessera::peft
