#include "text/vocabulary.h"

#include <bit>
#include <cstring>

namespace tessera::text {

// Multiply and fold, eight bytes at a time (the idea of wyhash, https://github.com/wangyi-fudan/wyhash).
std::uint64_t hash_bytes(std::string_view bytes) {
  const auto fold = [](std::uint64_t a, std::uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  std::uint64_t state = bytes.size() * 0x9E3779B97F4A7C15ull, word = 0;
  while (bytes.size() >= 8) {
    std::memcpy(&word, bytes.data(), 8);
    state = fold(state ^ word, 0xA0761D6478BD642Full);
    bytes.remove_prefix(8);
  }
  word = 0;
  std::memcpy(&word, bytes.data(), bytes.size());
  return fold(state ^ word, 0xE7037ED1A0B428DBull);
}

void Vocabulary::reserve(std::size_t count) {
  tokens_.reserve(count);
  if (slots_.size() < count * 2) grow(std::bit_ceil(count * 2));
}

void Vocabulary::grow(std::size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const auto& slot : old) {
    if (slot.id < 0) continue;
    auto at = slot.hash & (slots_.size() - 1);
    while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = slot;
  }
}

void Vocabulary::add(std::string_view token, std::int32_t id) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  tokens_[index] = token;
  if (slots_.size() < (count_ + 1) * 2) grow(std::bit_ceil((count_ + 1) * 4));
  const auto hash = static_cast<std::uint32_t>(hash_bytes(token));
  for (auto at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    auto& slot = slots_[at];
    if (slot.id < 0) {
      slot = {hash, id};
      ++count_;
      return;
    }
    if (slot.hash == hash && tokens_[static_cast<std::size_t>(slot.id)] == token) {
      slot.id = id;
      return;
    }
  }
}

std::int32_t Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return -1;
  const auto hash = static_cast<std::uint32_t>(hash_bytes(token));
  for (auto at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
    const auto& slot = slots_[at];
    if (slot.id < 0) return -1;
    if (slot.hash == hash && tokens_[static_cast<std::size_t>(slot.id)] == token) return slot.id;
  }
}

}  // namespace tessera::text
