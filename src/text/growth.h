#pragma once
#include <cstddef>

namespace tessera::text {

/// Whether a text of `bytes` bytes became more than a tokenizer's file may make of it: stages one behind another may
/// each double it.
constexpr bool is_too_much(std::size_t bytes, std::size_t made) {
  constexpr std::size_t kAlways = 1 << 20, kOfAByte = 64;
  return made > kAlways + kOfAByte * bytes;
}

}  // namespace tessera::text
