#pragma once
// Kinds of layers that descriptions of models name (families) and kernels compute (nn).
namespace tessera {

/// Those of transformers' ACT2FN that have no parameters of their own.
enum class Activation {
  kRelu,
  kGelu,
  kGeluTanh,
  kSilu,
  kQuickGelu,
  kReluSquared,
  kTanh,
  kSigmoid,
  kIdentity,
  kClippedGelu,  // gelu, from -10 to 10
  kRelu6,
  kLeakyRelu,
  kMish,
  kLaplace
};

/// Which elements of a head turn together: (i, i + R / 2) as in Llama and GPT-NeoX, or (2 i, 2 i + 1) as in GPT-J.
enum class RotaryPairs { kHalves, kNeighbours };

}  // namespace tessera
