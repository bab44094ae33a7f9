#pragma once
// libFuzzer's hooks for a target whose whole input is one JSON document.
#include "fuzz/json_tree.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, tessera::fuzz::changed_json);
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* first, std::size_t first_size,
                                                 const std::uint8_t* second, std::size_t second_size, std::uint8_t* out,
                                                 std::size_t max_size, unsigned seed) {
  tessera::fuzz::Random random(seed);
  const auto text = tessera::fuzz::crossed_json({reinterpret_cast<const char*>(first), first_size},
                                                {reinterpret_cast<const char*>(second), second_size}, random);
  if (!text || text->size() > max_size) return 0;
  std::memcpy(out, text->data(), text->size());
  return text->size();
}
