#pragma once
// What a codec may offer beside tensor::Codec: values and codes that another device than the CPU makes itself.
#include <vector>

#include "tessera/tensor/codec.h"

namespace tessera::tensor {

class DeviceCodec {
 public:
  virtual ~DeviceCodec() = default;
  /// The whole matrix [rows, columns] rounded to `dtype`, on the device where its fields lie: the bits of
  /// Codec::decode().
  virtual at::Tensor decode_there(const PackedMatrix& matrix, at::ScalarType dtype) const = 0;
  /// The fields of a contiguous float32 matrix, on the device where it lies: the bytes of Codec::encode(). Empty where
  /// the codec only reads.
  virtual std::vector<at::Tensor> encode_there(const at::Tensor& /*matrix*/) const { return {}; }
};

}  // namespace tessera::tensor
