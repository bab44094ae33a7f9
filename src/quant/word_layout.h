#pragma once
// Where GPTQ and AWQ put codes of a few bits in words of 32.

namespace tessera::quant {

/// How codes lie in words. kGptq: 32 / bits inputs in a word of `qweight` [in / per word, out], zero points
/// [groups, out / per word], both from the low bits up. kAwq (its "gemm" layout): outputs in a word of `qweight`
/// [in, out / 8] and [groups, out / 8], in the order 0, 2, 4, 6, 1, 3, 5, 7.
enum class WordLayout { kGptq, kAwq };

}  // namespace tessera::quant
