// Sums by a chain of hosts: see hosts_communicator.h.
#include <algorithm>
#include <array>

#include "base/link_bytes.h"
#include "comm/hosts/hosts_communicator.h"

namespace tessera::comm {
namespace {

constexpr std::int64_t kChunksAhead = 4;

/// What each rank of a host sums up: lanes share the vector, other ranks have no part.
std::vector<Slice> lane_slices(std::int64_t numel, int lanes, int local_size) {
  std::vector<Slice> slices = equal_slices(numel, lanes);
  slices.resize(static_cast<std::size_t>(local_size), {numel, 0});
  return slices;
}

Slice chunk_of(const Slice& slice, std::int64_t chunk) {
  const std::int64_t begin = std::min(slice.count, chunk * kChunkNumel);
  return {slice.begin + begin, std::min(kChunkNumel, slice.count - begin)};
}

std::int64_t chunks_of(const Slice& slice) {
  return (slice.count + kChunkNumel - 1) / kChunkNumel;
}

/// An empty one begins where b does.
Slice intersection(const Slice& a, const Slice& b) {
  const std::int64_t begin = std::max(a.begin, b.begin), end = std::min(a.begin + a.count, b.begin + b.count);
  return end > begin ? Slice{begin, end - begin} : Slice{b.begin, 0};
}

/// Memory of kChunksAhead chunks in turn.
class ChunkRing {
 public:
  ChunkRing(bool needed, Scratch& scratch, std::int64_t longest, std::int64_t item)
      : bytes_(std::min(longest, kChunkNumel) * item),
        memory_(needed ? scratch.at_least(kChunksAhead * bytes_) : nullptr) {}
  std::byte* operator[](std::int64_t chunk) const { return memory_ + chunk % kChunksAhead * bytes_; }

 private:
  std::int64_t bytes_;
  std::byte* memory_;
};

}  // namespace

// The sum over all ranks of `in`, in the order of ranks. On the last host the lanes write their slice of it from
// sums.data on. done() is told each chunk of a lane, in elements of its slice.
void HostsCommunicator::chain(Elements in, std::int64_t numel, Elements sums, const Reduction& reduction,
                              const ChunkDone& done) {
  const auto slices = lane_slices(numel, hosts_.lanes(), group().size());
  const Slice mine = slices[static_cast<std::size_t>(group().rank())];
  const c10::ScalarType sum_type = accumulation_type(in.type);
  const auto item = static_cast<std::int64_t>(c10::elementSize(sum_type));
  const auto out_item = static_cast<std::int64_t>(c10::elementSize(sums.type));
  const bool receives = is_lane() && host_ > 0, sends = is_lane() && !is_last_host();
  const ChunkRing before(receives, before_, mine.count, item), after(sends, after_, mine.count, item);
  std::array<Wire::Message, kChunksAhead> received, sent;
  std::int64_t asked = 0;
  const std::int64_t chunks = chunks_of(slices[0]), own_chunks = chunks_of(mine);  // lane 0 has the longest slice
  for (std::int64_t j = 0; j < chunks; ++j) {
    const auto slot = static_cast<std::size_t>(j % kChunksAhead);
    const Slice chunk = chunk_of(mine, j);
    Reduction step{reduction.op, 1.0, false, nullptr};
    if (is_last_host()) step = reduction;
    Elements target{nullptr, sums.type};
    if (sends) {
      target = {after[j], sum_type};
      wire_->wait(sent[slot]);
    } else if (is_lane() && chunk.count > 0) {
      target.data = static_cast<std::byte*>(sums.data) + (chunk.begin - mine.begin) * out_item;
    }
    for (; receives && asked < std::min(own_chunks, j + kChunksAhead); ++asked) {
      received[static_cast<std::size_t>(asked % kChunksAhead)] =
          wire_->receive(host_ - 1, before[asked], chunk_of(mine, asked).count * item);
    }
    if (receives && chunk.count > 0) {
      wire_->wait(received[slot]);
      step.before = before[j];
    }
    std::vector<Slice> parts;
    for (const Slice& slice : slices) parts.push_back(chunk_of(slice, j));
    reduce_slices(group(), target, in, parts, step);
    if (chunk.count == 0) continue;
    if (sends) sent[slot] = wire_->send(host_ + 1, target.data, chunk.count * item);
    if (is_lane()) done(j, chunk.begin - mine.begin, chunk.count);
  }
  for (Wire::Message& message : sent) {
    if (sends) wire_->wait(message);
  }
}

// Results go from the last host to host 0, 1, ..., each passing them on: no host sends a result twice.
void HostsCommunicator::all_reduce_by_chain(const at::Tensor& t, ReduceOp op) {
  const auto slices = lane_slices(t.numel(), hosts_.lanes(), group().size());
  const Slice mine = slices[static_cast<std::size_t>(group().rank())];
  const auto item = static_cast<std::int64_t>(t.element_size());
  const int last = hosts_.count() - 1;
  const bool receives = is_lane() && !is_last_host(), passes_on = receives && host_ + 1 < last;
  std::byte* own = bytes_of(t) + mine.begin * item;
  const auto bytes_of_chunk = [&](std::int64_t j) { return chunk_of(mine, j).count * item; };
  // A chunk comes back after it was passed on, and so read.
  std::vector<Wire::Message> results, passed_on;
  for (std::int64_t j = 0; receives && j < chunks_of(mine); ++j) {
    results.push_back(wire_->receive(host_ == 0 ? last : host_ - 1, own + j * kChunkNumel * item, bytes_of_chunk(j),
                                     Wire::Kind::kResults));
  }
  std::int64_t next = 0;  // result to take
  const auto take_results_before = [&](std::int64_t end) {
    for (; receives && next < end; ++next) {
      wire_->wait(results[static_cast<std::size_t>(next)]);
      if (!passes_on) continue;
      passed_on.push_back(
          wire_->send(host_ + 1, own + next * kChunkNumel * item, bytes_of_chunk(next), Wire::Kind::kResults));
    }
  };
  const std::int64_t in_flight = kChunksAhead + hosts_.count();  // of chunks that are being summed up
  chain(elements_of(t), t.numel(), {own, t.scalar_type()}, {op, 1.0, false},
        [&](std::int64_t j, std::int64_t begin, std::int64_t count) {
          if (is_last_host())
            passed_on.push_back(wire_->send(0, own + begin * item, count * item, Wire::Kind::kResults));
          take_results_before(j - in_flight);
        });
  take_results_before(chunks_of(mine));
  if (group().size() > 1) {
    std::vector<Flow> flows;
    for (const Slice& slice : slices) flows.push_back(whole(slice.count * item, bytes_of(t) + slice.begin * item));
    stream(group(), own, flows);
  }
  wait(passed_on);
}

void HostsCommunicator::reduce_scatter_by_chain(const at::Tensor& out, const at::Tensor& in,
                                                const ReduceOptions& options) {
  const auto slices = lane_slices(in.numel(), hosts_.lanes(), group().size());
  const Slice mine = slices[static_cast<std::size_t>(group().rank())];
  const c10::ScalarType type = accumulation_type(in.scalar_type());
  const auto item = static_cast<std::int64_t>(c10::elementSize(type));
  const auto part_of_host = [&](int h) { return Slice{hosts_.first(h) * out.numel(), hosts_.size(h) * out.numel()}; };
  const int last = hosts_.count() - 1;
  // On the last host the lane's slice of all sums; on others what of it belongs to this host.
  const Slice kept = is_last_host() ? mine : intersection(mine, part_of_host(host_));
  std::byte* sums = sums_.at_least(kept.count * item);
  std::vector<Wire::Message> results;
  for (std::int64_t j = 0; is_lane() && !is_last_host() && j < chunks_of(mine); ++j) {
    const Slice part = intersection(chunk_of(mine, j), kept);
    results.push_back(wire_->receive(last, sums + (part.begin - kept.begin) * item, part.count * item));
  }
  chain(elements_of(in), in.numel(), {sums, type}, {}, [&](std::int64_t, std::int64_t begin, std::int64_t count) {
    for (int h = 0; is_last_host() && h < last; ++h) {
      const Slice part = intersection(part_of_host(h), {mine.begin + begin, count});
      results.push_back(wire_->send(h, sums + (part.begin - mine.begin) * item, part.count * item));
    }
  });
  wait(results);
  deliver_sums(sums, kept.begin, out, type, options);
}

// The lanes of this host have the sums for its ranks, each within its slice of the vector, in memory that starts with
// element `kept_begin`. Every rank takes its own.
void HostsCommunicator::deliver_sums(const std::byte* sums, std::int64_t kept_begin, const at::Tensor& out,
                                     c10::ScalarType type, const ReduceOptions& options) {
  const auto item = static_cast<std::int64_t>(c10::elementSize(type));
  const std::int64_t n = out.numel();
  const Slice host_part{hosts_.first(host_) * n, hosts_.size(host_) * n}, wanted{rank() * n, n};
  const Reduction finish{ReduceOp::kSum, options.scale, options.accumulate};
  if (group().size() == 1) {
    const void* there = sums + (wanted.begin - kept_begin) * item;
    return reduce_into(out.data_ptr(), out.scalar_type(), {&there, 1}, type, n, finish);
  }
  std::byte* own_sum = own_sum_.at_least(n * item);
  std::vector<Flow> flows;
  const std::byte* own = sums;
  for (const Slice& slice : lane_slices(n * size(), hosts_.lanes(), group().size())) {
    const Slice there = intersection(slice, host_part), taken = intersection(there, wanted);
    const bool takes = taken.count > 0;
    if (static_cast<int>(flows.size()) == group().rank() && there.count > 0)
      own = sums + (there.begin - kept_begin) * item;
    flows.push_back({there.count * item, takes ? own_sum + (taken.begin - wanted.begin) * item : nullptr,
                     takes ? (taken.begin - there.begin) * item : 0,
                     takes ? (taken.begin - there.begin + taken.count) * item : 0});
  }
  stream(group(), own, flows);
  const void* input = own_sum;
  reduce_into(out.data_ptr(), out.scalar_type(), {&input, 1}, type, n, finish);
}

}  // namespace tessera::comm
