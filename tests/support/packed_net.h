#pragma once
// A net of packed layers with adapters, beside trainable biases, and the same net over the dequantised weights.
#include <string>
#include <utility>
#include <vector>

#include "nn/ops/lora_linear.h"
#include "support/int8_codec.h"
#include "support/small_net.h"
#include "tessera/nn/packed_weight.h"
#include "tessera/nn/weight.h"

namespace tessera::testing {

enum class Base { kPacked, kDequantised };

class AdaptedLayer final : public nn::Layer {
 public:
  AdaptedLayer(std::int64_t in, std::int64_t out, double seed, Base base, std::int64_t block = 32) {
    const auto codec = std::make_shared<Int8Blocks>(block);
    const auto values = fixed_values({out, in}, seed, 0.5);
    weight = register_parameter("weight", values, /*requires_grad=*/false);
    if (base == Base::kPacked)
      packed = register_module("weight", std::make_shared<nn::PackedWeight>(codec, weight));
    else
      weight.set_data(tensor::unpack(tensor::pack(codec, values), at::kFloat));
    bias = register_parameter("bias", fixed_values({out}, seed + 0.5, 0.1));
    a = register_parameter("a", fixed_values({4, in}, seed + 0.25, 0.2));
    b = register_parameter("b", fixed_values({out, 4}, seed + 0.75, 0.2));
  }
  std::string class_name() const override { return "AdaptedLayer"; }
  at::Tensor weight, bias, a, b;
  std::shared_ptr<nn::PackedWeight> packed;

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    const auto handle = packed ? nn::Weight(packed->matrix()) : nn::Weight(weight);
    return at::tanh(nn::lora_linear(x, handle, bias, {a, b, 0.5, 0}));
  }
};

/// Odd sizes: blocks cross rows, and the last block of every matrix has fewer elements.
class PackedNet final : public nn::Layer {
 public:
  explicit PackedNet(Base base, std::int64_t block = 32) {
    const std::vector<std::int64_t> sizes = {6, 21, 17, 6};
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i)
      layers.push_back(register_module(
          "layer" + std::to_string(i),
          std::make_shared<AdaptedLayer>(sizes[i], sizes[i + 1], 1.0 + static_cast<double>(i), base, block)));
  }
  std::string class_name() const override { return "PackedNet"; }
  std::vector<std::shared_ptr<AdaptedLayer>> layers;

  /// Codes and statistics by their names: copies.
  std::vector<std::pair<std::string, at::Tensor>> packed_values() const {
    std::vector<std::pair<std::string, at::Tensor>> out;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const auto name = "layer" + std::to_string(i) + ".weight";
      out.emplace_back(name, layers[i]->packed->matrix()->fields[0].clone());
      out.emplace_back(name + ".absmax", layers[i]->packed->matrix()->fields[1].clone());
    }
    return out;
  }

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& layer : layers) x = (*layer)(x);
    return x;
  }
};

inline bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

}  // namespace tessera::testing
