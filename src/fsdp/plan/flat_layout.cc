#include "fsdp/plan/flat_layout.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

constexpr std::int64_t kAlignBytes = 64;

std::int64_t alignment(const Segment& s) {
  return s.align_bytes / static_cast<std::int64_t>(std::min(c10::elementSize(s.stored), c10::elementSize(s.compute)));
}

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

Segment& segment_for(std::vector<Segment>& segments, const ParameterSpec& p) {
  const auto stored = p.packed() ? at::kByte : p.stored, compute = p.packed() ? at::kByte : p.compute;
  const auto align_bytes = p.packed() ? std::lcm(kAlignBytes, p.block_bytes) : kAlignBytes;
  auto same = [&](const Segment& s) {
    return !s.alone && s.stored == stored && s.compute == compute && s.trainable == p.trainable && s.kept == p.kept &&
           s.align_bytes == align_bytes;
  };
  auto found = p.alone ? segments.end() : std::find_if(segments.begin(), segments.end(), same);
  if (found != segments.end()) return *found;
  return segments.emplace_back(Segment{stored, compute, p.trainable, p.kept, p.alone, align_bytes, 0, 0, {}});
}

}  // namespace

std::int64_t ParameterSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t ParameterSpec::segment_numel() const {
  return packed() ? numel() * static_cast<std::int64_t>(c10::elementSize(stored)) : numel();
}

std::vector<Segment> make_segments(const std::vector<ParameterSpec>& parameters, int world_size) {
  TESSERA_CHECK(world_size > 0, "a layout needs a world");
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].mapped) continue;
    auto& s = segment_for(segments, parameters[i]);
    const auto offset = round_up(s.numel, alignment(s));
    s.entries.push_back({static_cast<int>(i), offset, parameters[i].segment_numel()});
    s.numel = offset + parameters[i].segment_numel();
  }
  for (auto& s : segments) {
    s.slice_numel = round_up(round_up(s.numel, world_size) / world_size, alignment(s));
    s.numel = s.slice_numel * world_size;
  }
  return segments;
}

std::vector<Piece> pieces_of_slice(const Segment& segment, int rank) {
  const auto begin = segment.slice_numel * rank, end = begin + segment.slice_numel;
  std::vector<Piece> pieces;
  for (const auto& e : segment.entries) {
    const auto from = std::max(begin, e.offset), to = std::min(end, e.offset + e.numel);
    if (from < to) pieces.push_back({e.parameter, from - e.offset, from - begin, to - from});
  }
  return pieces;
}

std::vector<std::pair<std::int64_t, std::int64_t>> gaps(const Segment& segment) {
  std::vector<std::pair<std::int64_t, std::int64_t>> result;
  std::int64_t at = 0;
  for (const auto& e : segment.entries) {
    if (e.offset > at) result.emplace_back(at, e.offset);
    at = e.offset + e.numel;
  }
  if (segment.numel > at) result.emplace_back(at, segment.numel);
  return result;
}

}  // namespace tessera::fsdp
