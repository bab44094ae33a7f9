#pragma once
// The points that codes of GGUF's types IQ1, IQ2 and IQ3 stand for: eight values each, of IQ3 four.
#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera::io {

template <std::size_t kPoints, std::size_t kWidth>
using GgufGrid = std::array<std::array<std::int8_t, kWidth>, kPoints>;

extern const GgufGrid<2048, 8> kGgufIq1;  // of IQ1_S and IQ1_M
extern const GgufGrid<256, 8> kGgufIq2Xxs;
extern const GgufGrid<512, 8> kGgufIq2Xs;
extern const GgufGrid<1024, 8> kGgufIq2S;
extern const GgufGrid<256, 4> kGgufIq3Xxs;
extern const GgufGrid<512, 4> kGgufIq3S;

}  // namespace tessera::io
