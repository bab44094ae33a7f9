#pragma once
// What a codec may offer beside tensor::Codec: values that another device than the CPU makes itself.
#include "tessera/tensor/codec.h"

namespace tessera::tensor {

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;
  /// The whole matrix [rows, columns] rounded to `dtype`, on the device where its fields lie: the bits of
  /// Codec::decode().
  virtual at::Tensor decode_there(const PackedMatrix& matrix, at::ScalarType dtype) const = 0;
};

}  // namespace tessera::tensor
