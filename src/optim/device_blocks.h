#pragma once
// Codes of states (state_codec.h) on another device than the CPU, made and read by libtorch's operators or by a kernel
// of the device: those that the codec gives the same values on the CPU.
#include <ATen/core/Tensor.h>

#include <array>
#include <memory>

#include "optim/state_codec.h"
#include "tessera/optim/update.h"

namespace tessera::optim {

class DeviceBlocks {
 public:
  DeviceBlocks(std::shared_ptr<const StateCodec> codec, at::Device device);
  /// The values of whole blocks, the last of which may be shorter, in float32 [numel]. codes: their bytes; scales: one
  /// a block.
  at::Tensor decode(bool with_signs, const at::Tensor& codes, const at::Tensor& scales, std::int64_t numel) const;
  /// Such values become codes and scales.
  void encode(bool with_signs, const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) const;
  /// A step of AdamW in codes over whole blocks, in one pass of the device's kernel. False, and nothing is done, where
  /// there is none for this rule or these tensors.
  bool update(const Update& update, const at::Tensor& parameter, const at::Tensor& gradient,
              const std::array<at::Tensor, kMaxStates>& codes, const std::array<at::Tensor, kMaxStates>& scales) const;

 private:
  struct Map {
    at::Tensor values, thresholds;  // by code; code_thresholds()
  };
  const Map& map(bool with_signs) const { return maps_[with_signs ? 1 : 0]; }
  std::shared_ptr<const StateCodec> codec_;
  std::array<Map, 2> maps_;
};

}  // namespace tessera::optim
