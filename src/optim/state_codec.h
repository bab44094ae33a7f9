#pragma once
// How optimizers keep states in few bits: codes in blocks of a parameter's elements, each block scaled by its largest
// magnitude, a code standing for a value of a table. bitsandbytes and torchao differ in blocks, tables, rounding,
// names, and in which parameters they pack.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera::optim {

constexpr std::int64_t kLargestStateBlock = 256;  // elements

/// The parts of a state in a checkpoint. kValues: in float32, where a parameter is not packed.
enum class StatePart { kValues, kCodes, kScales, kTable };

class StateCodec {
 public:
  virtual ~StateCodec() = default;
  virtual std::int64_t block() const = 0;          // elements, at most kLargestStateBlock, even
  virtual std::int64_t codes_in_byte() const = 0;  // 1, or 2: the first in the high half
  /// The states of this parameter are packed; else they are float32.
  virtual bool packs(const ParameterSlice& slice) const = 0;
  /// By code, ascending.
  virtual std::span<const float> table(bool with_signs) const = 0;
  /// Of a block whose elements are (nearly) zero.
  virtual float least_scale() const { return 0; }
  float scale_of(float absmax) const { return std::max(absmax, least_scale()); }
  /// Elements are multiplied by 1 / scale before they get their codes; else divided by it, which rounds otherwise.
  virtual bool multiplies_by_inverse() const = 0;
  /// Codes of (a part of) one block, one a byte.
  virtual void encode(bool with_signs, const float* x, std::int64_t numel, float scale, std::uint8_t* codes) const = 0;
  /// Of state 1 or 2: "state1", "exp_avg.codes".
  virtual std::string name_of(StatePart part, int number) const = 0;
  /// Whose they are, for messages.
  virtual std::string maker() const = 0;

  /// table(with_signs)[code] * scale.
  void decode(bool with_signs, const std::uint8_t* codes, std::int64_t numel, float scale, float* out) const {
    const auto values = table(with_signs);
    for (std::int64_t i = 0; i < numel; ++i) out[i] = values[codes[i]] * scale;
  }
};

/// A table as a tensor of the CPU, [its values].
at::Tensor tensor_of(std::span<const float> table);

/// By code but the first: the least value at scale 1 that has it.
std::vector<float> code_thresholds(const StateCodec& codec, bool with_signs);

/// 8 bits of the dynamic map in blocks of 256, of parameters with at least so many elements but embeddings
/// (ParameterSlice::full_state); Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022.
std::shared_ptr<const StateCodec> bnb_state_codec(std::int64_t least_numel = 4096);
/// The names of bitsandbytes' states where none is packed.
std::string bnb_state_name(StatePart part, int number);
/// torchao's: 8 bits in blocks of 256, or 4 in blocks of 128 (Li et al., "Memory Efficient Optimizers with 4-bit
/// States", 2023, without its rank-1 scales), of parameters with at least 4096 elements in whole blocks.
std::shared_ptr<const StateCodec> torchao_state_codec(int bits);

}  // namespace tessera::optim
