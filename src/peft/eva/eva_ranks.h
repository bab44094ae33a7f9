#pragma once
// How EVA spreads the ranks of LoRA over its layers, and the configuration that says so.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "peft/eva/eva_settings.h"
#include "peft/methods/lora.h"

namespace tessera::peft {

struct EvaLayer {
  std::string name;
  std::int64_t rank = 0;        // that it asks for
  std::int64_t components = 0;  // most that it can get; layers with the same inputs have the same number
  std::size_t like = 0;         // the first layer with the same inputs: an earlier one, or itself
  bool is_like_another(std::size_t own_place) const { return like != own_place; }
};

/// Layers whose inputs have equal `keys` are like the first of them, and get the most components of theirs.
void join_equal_inputs(std::vector<EvaLayer>& layers, const std::vector<std::string>& keys);

/// Ranks by layer, as many together as the layers ask for: the components that explain most go first, whichever layer
/// they are of. shares: what each component explains, by layer; undefined for layers that are like another.
std::vector<std::int64_t> spread_ranks(const std::vector<EvaLayer>& layers, const std::vector<at::Tensor>& shares);

/// LoRA with these ranks: layers of rank 0 are no targets any more, `others` remain as they are.
Lora with_ranks(const Lora& given, const std::vector<EvaLayer>& layers, const std::vector<std::int64_t>& ranks,
                const std::vector<std::string>& others);

}  // namespace tessera::peft
