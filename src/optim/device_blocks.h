#pragma once
// Codes of states (state_codec.h) on another device than the CPU, made and read by libtorch's operators: those that
// the codec gives the same values on the CPU.
#include <ATen/core/Tensor.h>

#include <array>
#include <memory>

#include "optim/state_codec.h"

namespace tessera::optim {

class DeviceBlocks {
 public:
  DeviceBlocks(std::shared_ptr<const StateCodec> codec, at::Device device);
  /// The values of whole blocks, the last of which may be shorter, in float32 [numel]. codes: their bytes; scales: one
  /// a block.
  at::Tensor decode(bool with_signs, const at::Tensor& codes, const at::Tensor& scales, std::int64_t numel) const;
  /// Such values become codes and scales.
  void encode(bool with_signs, const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) const;

 private:
  struct Map {
    at::Tensor values, thresholds;  // by code; code_thresholds()
  };
  const Map& map(bool with_signs) const { return maps_[with_signs ? 1 : 0]; }
  std::shared_ptr<const StateCodec> codec_;
  std::array<Map, 2> maps_;
};

}  // namespace tessera::optim
