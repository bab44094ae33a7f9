#include "estimate/packed_bytes.h"

namespace tessera::estimate {

PackedBits bits_of(const families::Quantization& settings) {
  return {.bits = settings.form == families::PackedForm::kInt8 ? 8 : 4, .double_quant = settings.double_quant};
}

std::int64_t packed_bytes(const PackedBits& how, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kBlock = 64, kNestedBlock = 256;
  const std::int64_t numel = rows * columns;
  if (how.bits == 8) return numel + 4 * rows;  // SCB: the largest value of each row
  const std::int64_t blocks = (numel + kBlock - 1) / kBlock;
  const std::int64_t scales =
      how.double_quant ? blocks + 4 * ((blocks + kNestedBlock - 1) / kNestedBlock) + 4 : 4 * blocks;
  return (numel + 1) / 2 + scales;
}

}  // namespace tessera::estimate
