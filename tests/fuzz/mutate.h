#pragma once
// What the mutators of this folder share: a format's mutator takes an input apart, changes one part, and puts it
// together again with lengths, offsets and checksums that fit, so that a change reaches what a reader does with the
// part.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace tessera::fuzz {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  /// 0 to count - 1; 0 where there is nothing to choose from.
  std::size_t below(std::size_t count) { return count == 0 ? 0 : engine_() % count; }
  bool one_in(std::size_t count) { return below(count) == 0; }

 private:
  std::minstd_rand engine_;
};

/// The bytes after one of libFuzzer's own changes, which also puts in what the program compared bytes with.
inline std::string changed_bytes(std::string bytes, std::size_t most_more = 32) {
  const std::size_t size = bytes.size();
  bytes.resize(size + most_more);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data()), size, bytes.size()));
  return bytes;
}

/// Of the same length, for numbers.
inline std::string changed_number(std::string bytes) {
  return bytes.empty() ? bytes : changed_bytes(std::move(bytes), 0);
}

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T out{};
  std::memcpy(&out, bytes.data() + at, sizeof(out));
  return out;
}

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// The one change of all formats: something goes, comes twice, or moves. Returns which of the parts was chosen, for a
/// change of its own, or nothing.
template <class Part>
Part* change_list(std::vector<Part>& parts, Random& random) {
  if (parts.empty()) return nullptr;
  const auto chosen = parts.begin() + static_cast<std::ptrdiff_t>(random.below(parts.size()));
  const auto other = parts.begin() + static_cast<std::ptrdiff_t>(random.below(parts.size()));
  switch (random.below(8)) {
    case 0:
      parts.erase(chosen);
      return nullptr;
    case 1: {
      Part copy = *chosen;
      parts.insert(other, std::move(copy));
      return nullptr;
    }
    case 2:
      std::swap(*chosen, *other);
      return nullptr;
    default:
      return &*chosen;
  }
}

/// A mutator's body: `change(text, random)` gives the changed text, or nothing where it cannot take the input apart.
/// Now and then, and then, any bytes change.
template <class Change>
std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed, const Change& change) {
  Random random(seed);
  if (!random.one_in(8)) {
    const std::optional<std::string> text = change(std::string_view(reinterpret_cast<const char*>(data), size), random);
    if (text && !text->empty() && text->size() <= max_size) {
      std::memcpy(data, text->data(), text->size());
      return text->size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

}  // namespace tessera::fuzz
