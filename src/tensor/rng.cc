#include "tensor/rng.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera::tensor {
namespace {

// splitmix64 (Steele, Lea and Flood 2014): spreads consecutive inputs over all 64 bits.
std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

RandomKey split(std::uint64_t x) noexcept {
  return {static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(x >> 32)};
}

constexpr std::int64_t kGrain = 1 << 12;  // numbers of a thread

double unit_open(std::uint32_t bits) noexcept {
  return (bits + 0.5) * 0x1p-32;
}

// More than 2^32 elements take a fresh key for each such piece.
RandomKey piece_key(RandomKey key, std::uint64_t piece) noexcept {
  return piece == 0 ? key : split(mix((std::uint64_t{key.b} << 32 | key.a) ^ mix(piece)));
}

template <class Value>
void fill(const at::Tensor& out, RandomKey key, Value value) {
  TESSERA_CHECK(out.is_contiguous() && out.device().is_cpu(), "random fill needs a contiguous CPU tensor");
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, out.scalar_type(), "fill", [&] {
    auto* data = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::uint64_t>(begin); i < static_cast<std::uint64_t>(end); ++i)
        data[i] = static_cast<scalar_t>(value(piece_key(key, i >> 31), static_cast<std::uint32_t>(i & 0x7FFFFFFF)));
    });
  });
}

}  // namespace

RandomState& random_state() noexcept {
  thread_local RandomState state;
  return state;
}

RandomState stream_of(std::uint64_t seed, std::uint64_t stream) noexcept {
  return {.seed = mix(seed ^ mix(stream))};
}

void manual_seed(std::uint64_t seed, std::uint64_t stream) noexcept {
  random_state() = stream_of(seed, stream);
}

PassScope::PassScope(const at::Tensor& rows, std::uint64_t first_draw) : active_(rows.defined()) {
  if (!active_) return;
  auto& state = random_state();
  before_ = state;
  state.rows = rows.contiguous();
  state.position = first_draw;
}

PassScope::~PassScope() {
  if (active_) random_state() = std::move(before_);
}

void PartScope::take_turns() noexcept {
  auto& state = random_state();
  auto parts = std::move(state.parts);
  std::swap(state, parts[part_]);
  state.parts = std::move(parts);
}

RowScope::RowScope(at::Tensor rows) : before_(random_state().rows) {
  if (before_.defined()) random_state().rows = std::move(rows);
}

RowScope::~RowScope() {
  random_state().rows = std::move(before_);
}

RandomKey row_key(RandomKey draw, std::int64_t row) noexcept {
  const auto own = split(mix(static_cast<std::uint64_t>(row)));
  return {draw.a ^ own.a, draw.b ^ own.b};
}

RandomKey next_key() noexcept {
  auto& state = random_state();
  return split(mix(state.seed ^ mix(state.position++)));
}

RandomKey named_key(std::uint64_t seed, std::string_view name) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325ull;  // FNV-1a
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001B3ull;
  return split(mix(hash ^ mix(seed)));
}

void fill_uniform(at::Tensor out, RandomKey key, double low, double high) {
  fill(out, key, [=](RandomKey k, std::uint32_t i) { return low + (high - low) * unit_open(random_bits(k, i)); });
}

void fill_normal(at::Tensor out, RandomKey key, double mean, double std) {
  fill(out, key, [=](RandomKey k, std::uint32_t i) {  // Box-Muller
    const double radius = std::sqrt(-2.0 * std::log(unit_open(random_bits(k, i))));
    const double angle = 2.0 * std::numbers::pi * unit_open(random_bits({k.b ^ 0x5851F42Du, k.a}, i));
    return mean + std * radius * std::cos(angle);
  });
}

}  // namespace tessera::tensor
