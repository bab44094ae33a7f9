#include "comm/group/rounds.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tessera::comm {
namespace {

constexpr std::int64_t kAhead = 4;  // stages filled before this round's are read
static_assert(kAhead < kStages, "a stage that a slow reader still needs would be waited for by its writer");

template <class Fill, class Read>
void run_rounds(Group& group, std::int64_t rounds, const Fill& fill, const Read& read) {
  const std::uint64_t base = group.round;
  std::int64_t filled = 0;
  for (std::int64_t k = 0; k < rounds; ++k) {
    for (; filled < std::min(rounds, k + kAhead); ++filled) {
      const std::uint64_t round = base + static_cast<std::uint64_t>(filled);
      if (round >= kStages) group.await(&RankState::consumed, round - kStages + 1);
      fill(filled, group.control().stage(round, group.rank()));
      group.publish(&RankState::pushed, round + 1);
    }
    const std::uint64_t round = base + static_cast<std::uint64_t>(k);
    read(k, round);
    group.publish(&RankState::consumed, round + 1);
  }
  group.round = base + static_cast<std::uint64_t>(rounds);
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

void copy_own(const std::byte* own, const Flow& flow) {
  if (flow.out != nullptr && flow.out != own + flow.begin && flow.end > flow.begin) {
    std::memcpy(flow.out, own + flow.begin, static_cast<std::size_t>(flow.end - flow.begin));
  }
}

// The part of this round's stage that `flow` wants.
void copy_stage(const std::byte* stage, std::int64_t offset, const Flow& flow) {
  const std::int64_t from = std::max(flow.begin, offset);
  const std::int64_t to = std::min(flow.end, offset + kStageBytes);
  if (flow.out == nullptr || from >= to) return;
  std::memcpy(flow.out + (from - flow.begin), stage + (from - offset), static_cast<std::size_t>(to - from));
}

}  // namespace

std::vector<Slice> equal_slices(std::int64_t n, int size) {
  std::vector<Slice> slices(static_cast<std::size_t>(size));
  const std::int64_t step = ((n + size - 1) / size + 63) / 64 * 64;
  for (std::int64_t r = 0; r < size; ++r) {
    const std::int64_t begin = std::min(n, r * step);
    slices[static_cast<std::size_t>(r)] = {begin, std::min(n, begin + step) - begin};
  }
  return slices;
}

Flow whole(std::int64_t length, std::byte* out) {
  return {length, out, 0, length};
}

void stream(Group& group, const std::byte* own, std::span<const Flow> flows) {
  const Flow& mine = flows[static_cast<std::size_t>(group.rank())];
  if (group.size() == 1) return copy_own(own, mine);
  std::int64_t longest = 0;
  for (const Flow& flow : flows) longest = std::max(longest, flow.length);
  const bool keep = mine.out != nullptr && mine.out != own + mine.begin;
  const auto fill = [&](std::int64_t k, std::byte* stage) {
    const std::int64_t offset = k * kStageBytes;
    const std::int64_t count = std::min(kStageBytes, mine.length - offset);
    if (count <= 0) return;
    std::memcpy(stage, own + offset, static_cast<std::size_t>(count));
    if (keep) copy_stage(stage, offset, mine);
  };
  const auto read = [&](std::int64_t k, std::uint64_t round) {
    for (int i = 1; i < group.size(); ++i) {
      const int peer = (group.rank() + i) % group.size();
      group.await(&RankState::pushed, round + 1, peer);
      copy_stage(group.control().stage(round, peer), k * kStageBytes, flows[static_cast<std::size_t>(peer)]);
    }
  };
  run_rounds(group, divide_up(longest, kStageBytes), fill, read);
}

void reduce_slices(Group& group, Elements out, Elements in, std::span<const Slice> slices, const Reduction& reduction) {
  const int size = group.size();
  const int rank = group.rank();
  const auto item = static_cast<std::int64_t>(c10::elementSize(in.type));
  const auto out_item = static_cast<std::int64_t>(c10::elementSize(out.type));
  const auto sum_item = static_cast<std::int64_t>(c10::elementSize(accumulation_type(in.type)));
  const auto* source = static_cast<const std::byte*>(in.data);
  const Slice mine = slices[static_cast<std::size_t>(rank)];
  std::vector<const void*> inputs(static_cast<std::size_t>(size));
  if (size == 1) {
    inputs[0] = source + mine.begin * item;
    return reduce_into(out.data, out.type, inputs, in.type, mine.count, reduction);
  }
  const std::int64_t part_bytes = kStageBytes / (size - 1) / kCacheLine * kCacheLine;  // one part for each peer
  const std::int64_t step = part_bytes / item;
  std::int64_t longest = 0;
  for (const Slice& slice : slices) longest = std::max(longest, slice.count);
  const auto fill = [&](std::int64_t k, std::byte* stage) {
    for (int peer = 0; peer < size; ++peer) {
      const Slice slice = slices[static_cast<std::size_t>(peer)];
      const std::int64_t count = std::min(step, slice.count - k * step);
      if (peer == rank || count <= 0) continue;
      std::memcpy(stage + (peer < rank ? peer : peer - 1) * part_bytes, source + (slice.begin + k * step) * item,
                  static_cast<std::size_t>(count * item));
    }
  };
  const auto read = [&](std::int64_t k, std::uint64_t round) {
    group.await(&RankState::pushed, round + 1);
    for (int peer = 0; peer < size; ++peer) {
      inputs[static_cast<std::size_t>(peer)] =
          group.control().stage(round, peer) + (rank < peer ? rank : rank - 1) * part_bytes;
    }
    inputs[static_cast<std::size_t>(rank)] = source + (mine.begin + k * step) * item;
    const std::int64_t count = std::min(step, mine.count - k * step);
    if (count <= 0) return;
    Reduction part = reduction;
    if (part.before != nullptr) part.before = static_cast<const std::byte*>(part.before) + k * step * sum_item;
    reduce_into(static_cast<std::byte*>(out.data) + k * step * out_item, out.type, inputs, in.type, count, part);
  };
  run_rounds(group, divide_up(longest, step), fill, read);
}

void reduce_whole(Group& group, Elements data, std::int64_t n, const Reduction& reduction) {
  const auto item = static_cast<std::int64_t>(c10::elementSize(data.type));
  const std::int64_t step = kStageBytes / item;
  auto* bytes = static_cast<std::byte*>(data.data);
  std::vector<const void*> inputs(static_cast<std::size_t>(group.size()));
  if (group.size() == 1) return;
  const auto fill = [&](std::int64_t k, std::byte* stage) {
    std::memcpy(stage, bytes + k * kStageBytes, static_cast<std::size_t>(std::min(step, n - k * step) * item));
  };
  const auto read = [&](std::int64_t k, std::uint64_t round) {
    group.await(&RankState::pushed, round + 1);
    for (int r = 0; r < group.size(); ++r) inputs[static_cast<std::size_t>(r)] = group.control().stage(round, r);
    inputs[static_cast<std::size_t>(group.rank())] = bytes + k * kStageBytes;
    reduce_into(bytes + k * kStageBytes, data.type, inputs, data.type, std::min(step, n - k * step), reduction);
  };
  run_rounds(group, divide_up(n, step), fill, read);
}

}  // namespace tessera::comm
