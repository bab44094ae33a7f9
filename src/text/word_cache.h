#pragma once
// Remembers how words were tokenized. One small table for each thread, shared by all tokenizers: no locks, no
// allocations after the first use, a fixed size; a word that lands on another's place takes it.
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/model.h"

namespace tessera::text {

class WordCache {
 public:
  static constexpr std::size_t kLongest = 47;  // bytes of a word
  static constexpr std::size_t kMostTokens = 12;

  /// A number that no other model has.
  static std::uint32_t new_model();

  /// Appends the tokens of the word; false when it is not known. `hash`: of hash_bytes().
  static bool find(std::uint32_t model, std::string_view word, std::uint64_t hash, std::vector<ModelToken>& out);
  /// Remembers tokens [first, end) of `out` for the word, if they fit.
  static void put(std::uint32_t model, std::string_view word, std::uint64_t hash, const std::vector<ModelToken>& out,
                  std::size_t first);
};

}  // namespace tessera::text
