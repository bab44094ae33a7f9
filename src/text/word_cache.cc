#include "text/word_cache.h"

#include <atomic>
#include <cstring>
#include <memory>

namespace tessera::text {
namespace {

constexpr std::size_t kSlots = 1 << 14;

struct Slot {
  std::uint32_t model = 0;  // 0: free
  std::uint8_t length = 0, count = 0;
  std::array<char, WordCache::kLongest> word;
  std::array<std::int32_t, WordCache::kMostTokens> ids;
  std::array<std::uint8_t, WordCache::kMostTokens> begins, ends;
};

Slot& slot_of(std::uint32_t model, std::uint64_t hash) {
  thread_local const auto slots = std::make_unique<Slot[]>(kSlots);
  return slots[(hash ^ (model * 0x9E3779B9u)) & (kSlots - 1)];
}

}  // namespace

std::uint32_t WordCache::new_model() {
  static std::atomic<std::uint32_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

bool WordCache::find(std::uint32_t model, std::string_view word, std::uint64_t hash, std::vector<ModelToken>& out) {
  if (word.size() > kLongest) return false;
  const auto& slot = slot_of(model, hash);
  if (slot.model != model || slot.length != word.size() || std::memcmp(slot.word.data(), word.data(), word.size()) != 0)
    return false;
  for (std::size_t i = 0; i < slot.count; ++i) out.push_back({slot.ids[i], slot.begins[i], slot.ends[i]});
  return true;
}

void WordCache::put(std::uint32_t model, std::string_view word, std::uint64_t hash, const std::vector<ModelToken>& out,
                    std::size_t first) {
  const auto count = out.size() - first;
  if (word.size() > kLongest || count > kMostTokens) return;
  auto& slot = slot_of(model, hash);
  slot.model = model;
  slot.length = static_cast<std::uint8_t>(word.size());
  slot.count = static_cast<std::uint8_t>(count);
  std::memcpy(slot.word.data(), word.data(), word.size());
  for (std::size_t i = 0; i < count; ++i) {
    slot.ids[i] = out[first + i].id;
    slot.begins[i] = static_cast<std::uint8_t>(out[first + i].begin);
    slot.ends[i] = static_cast<std::uint8_t>(out[first + i].end);
  }
}

}  // namespace tessera::text
