#pragma once
// The wavelets that WaveFT reconstructs with, and their synthesis in one dimension.
#include <cstdint>
#include <string>
#include <vector>

#include "nn/ops/sparse_delta.h"

namespace tessera::peft {

/// A name that PEFT's configuration takes: db1 to db38, sym2 to sym20, coif1 to coif17.
bool is_wavelet_name(const std::string& name);

/// The low-pass filter of reconstruction; empty where PEFT has no usable one.
std::vector<float> wavelet_filter(const std::string& name);

/// `length` numbers of `coefficients`: half of them of the low-pass filter, and then half of the high-pass one. What
/// lies beyond both ends is cut off.
struct Synthesis {
  nn::FixedFactor matrix;  // [length, coefficients]
  std::int64_t coefficients;
  std::int64_t offset;  // of the first number's own coefficient
  Synthesis(const std::vector<float>& filter, std::int64_t length);
};

}  // namespace tessera::peft
