#include "optim/state_codec.h"

#include <ATen/ops/tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "quant/block_codes.h"
#include "quant/code_maps.h"

namespace tessera::optim {
namespace {

constexpr std::int64_t kFewestElements = 4096;  // of a parameter that torchao packs

class BnbStateCodec final : public StateCodec {
 public:
  explicit BnbStateCodec(std::int64_t least_numel) : least_numel_(least_numel) {}
  std::int64_t block() const override { return 256; }
  std::int64_t codes_in_byte() const override { return 1; }
  bool packs(const ParameterSlice& slice) const override {
    return !slice.full_state && c10::multiply_integers(slice.shape) >= least_numel_;
  }
  std::span<const float> table(bool with_signs) const override { return quant::dynamic_map(with_signs); }
  bool multiplies_by_inverse() const override { return true; }
  void encode(bool with_signs, const float* x, std::int64_t numel, float scale, std::uint8_t* codes) const override {
    quant::encode_dynamic_block(with_signs, x, numel, scale, codes);
  }
  std::string name_of(StatePart part, int number) const override { return bnb_state_name(part, number); }
  std::string maker() const override { return "bitsandbytes"; }

 private:
  std::int64_t least_numel_;
};

class TorchaoStateCodec final : public StateCodec {
 public:
  explicit TorchaoStateCodec(int bits) : bits_(bits) {}
  std::int64_t block() const override { return bits_ == 8 ? 256 : 128; }
  std::int64_t codes_in_byte() const override { return 8 / bits_; }
  bool packs(const ParameterSlice& slice) const override {
    const auto numel = c10::multiply_integers(slice.shape);
    return numel >= kFewestElements && numel % block() == 0;
  }
  std::span<const float> table(bool with_signs) const override {
    if (bits_ == 8) return quant::dynamic_map(with_signs);
    if (with_signs) return quant::dynamic_map_of_four_bits();
    return quant::linear_map_of_four_bits();
  }
  float least_scale() const override { return 1e-12f; }
  bool multiplies_by_inverse() const override { return false; }

  // The nearest code, of two that are as near the higher one: by halves, as there, so that rounding is the same.
  void encode(bool with_signs, const float* x, std::int64_t numel, float scale, std::uint8_t* codes) const override {
    const auto values = table(with_signs);
    const auto last = static_cast<std::uint32_t>(values.size()) - 1;
    for (std::int64_t i = 0; i < numel; ++i) {
      const float value = x[i] / scale;
      std::uint32_t code = 0;
      for (auto half = (last + 1) / 2; half > 0; half /= 2) code += value >= values[code + half] ? half : 0;
      const auto next = std::min(code + 1, last);
      const float below = values[code], above = values[next];
      codes[i] = static_cast<std::uint8_t>(value - below >= (above - below) * 0.5f ? next : code);
    }
  }

  std::string name_of(StatePart part, int number) const override {
    const std::string name = number == 1 ? "exp_avg" : "exp_avg_sq";
    switch (part) {
      case StatePart::kValues:
        return name;
      case StatePart::kCodes:
        return name + ".codes";
      case StatePart::kScales:
        return name + ".scale";
      case StatePart::kTable:
        break;
    }
    return name + ".qmap";
  }
  std::string maker() const override { return "torchao"; }

 private:
  int bits_;
};

/// Floats in their order as whole numbers, and back.
std::int64_t place_of(float x) {
  const auto bits = std::bit_cast<std::int32_t>(x);
  return bits < 0 ? std::numeric_limits<std::int32_t>::min() - std::int64_t{bits} : bits;
}
float at_place(std::int64_t place) {
  const auto bits = place < 0 ? std::numeric_limits<std::int32_t>::min() - place : place;
  return std::bit_cast<float>(static_cast<std::int32_t>(bits));
}

}  // namespace

at::Tensor tensor_of(std::span<const float> table) {
  return at::tensor(at::ArrayRef<float>(table.data(), table.size()), at::kFloat);
}

std::vector<float> code_thresholds(const StateCodec& codec, bool with_signs) {
  const auto code_of = [&](float x) {
    std::uint8_t code = 0;
    codec.encode(with_signs, &x, 1, 1.0f, &code);
    return std::size_t{code};
  };
  std::vector<float> thresholds(codec.table(with_signs).size() - 1);
  for (std::size_t i = 0; i < thresholds.size(); ++i) {
    auto below = place_of(-2), from = place_of(2);  // values are in [-1, 1]
    while (from - below > 1) {
      const auto middle = below + (from - below) / 2;
      (code_of(at_place(middle)) > i ? from : below) = middle;
    }
    thresholds[i] = at_place(from);
  }
  return thresholds;
}

std::shared_ptr<const StateCodec> bnb_state_codec(std::int64_t least_numel) {
  return std::make_shared<BnbStateCodec>(least_numel);
}

std::string bnb_state_name(StatePart part, int number) {
  const char* name = part == StatePart::kScales ? "absmax" : part == StatePart::kTable ? "qmap" : "state";
  return name + std::to_string(number);
}

std::shared_ptr<const StateCodec> torchao_state_codec(int bits) {
  return std::make_shared<TorchaoStateCodec>(bits);
}

}  // namespace tessera::optim
