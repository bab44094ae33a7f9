#include "peft/methods/block_dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tensor/device.h"
#include "tensor/random_bits.h"
#include "tensor/rng.h"

namespace tessera::peft {
namespace {

/// [blocks] bool, floor(p * blocks) of them true.
at::Tensor drawn_blocks(std::int64_t blocks, double p, tensor::RandomKey key) {
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = tensor::random_bits(key, static_cast<std::uint32_t>(i));
  std::vector<std::size_t> order(bits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bits[a] < bits[b]; });
  auto drawn = at::zeros({blocks}, at::TensorOptions().dtype(at::kBool));
  const auto count = static_cast<std::size_t>(p * static_cast<double>(blocks));
  for (std::size_t i = 0; i < count; ++i) drawn.mutable_data_ptr<bool>()[order[i]] = true;
  return drawn;
}

at::Tensor replaced(const at::Tensor& turns, const at::Tensor& drawn) {
  const auto identity = at::eye(turns.size(-1), turns.options());
  return at::where(tensor::beside(drawn, turns).unsqueeze(-1).unsqueeze(-1), identity, turns);
}

}  // namespace

at::Tensor with_dropped_blocks(const at::Tensor& turns, double p) {
  if (turns.size(0) == 1) return turns;
  return replaced(turns, drawn_blocks(turns.size(0), p, tensor::next_key()));
}

at::Tensor with_dropped_factor(const at::Tensor& turns, double p) {
  const auto key = tensor::next_key();
  const auto factors = turns.size(0), blocks = turns.size(1);
  auto drawn = at::zeros({factors, blocks}, at::TensorOptions().dtype(at::kBool));
  const auto factor =
      tensor::random_bits(key, static_cast<std::uint32_t>(blocks)) % static_cast<std::uint32_t>(factors);
  drawn.select(0, factor).copy_(drawn_blocks(blocks, p, key));
  return replaced(turns, drawn);
}

}  // namespace tessera::peft
