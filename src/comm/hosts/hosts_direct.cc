// Sums by direct exchange: see hosts_communicator.h.
#include <algorithm>

#include "base/link_bytes.h"
#include "comm/hosts/hosts_communicator.h"

namespace tessera::comm {
namespace {

constexpr std::int64_t kRound = 256 * 1024;  // elements of a rank's slice in a round, from all other hosts together
constexpr std::int64_t kLeastRound = 16 * 1024;
constexpr std::int64_t kRoundsAhead = 4;  // asked for before a round is summed up

/// Elements of a slice in a round.
std::int64_t round_length(int hosts) {
  return std::max(kLeastRound, kRound / (hosts - 1));
}

Slice round_of(const Slice& slice, std::int64_t round, std::int64_t step) {
  const std::int64_t begin = std::min(slice.count, round * step);
  return {slice.begin + begin, std::min(step, slice.count - begin)};
}

std::int64_t rounds_of(const std::vector<Slice>& slices, std::int64_t step) {
  std::int64_t longest = 0;
  for (const Slice& slice : slices) longest = std::max(longest, slice.count);
  return (longest + step - 1) / step;
}

}  // namespace

bool HostsCommunicator::sums_directly(c10::ScalarType type) const {
  const int ranks = group().size();
  for (int h = 0; h < hosts_.count(); ++h) {
    if (hosts_.size(h) != ranks) return false;
  }
  const auto bytes_of_element = [](c10::ScalarType t) { return static_cast<double>(c10::elementSize(t)); };
  return tessera::sums_directly(ranks, bytes_of_element(type), bytes_of_element(accumulation_type(type)));
}

// Slices of `in`, by rank of the group; every rank gets the reduction of its own. Rank k of a host talks to the k-th of
// the others; from host h it receives, for all ranks of this host, what that rank contributes. done() is told each
// round.
void HostsCommunicator::sum_directly(Elements in, const std::vector<Slice>& slices, Elements out,
                                     const Reduction& reduction, const RoundDone& done) {
  const int ranks = group().size(), hosts = hosts_.count();
  const auto item = static_cast<std::int64_t>(c10::elementSize(in.type));
  const c10::ScalarType sum_type = accumulation_type(in.type);
  const std::int64_t step = round_length(hosts), rounds = rounds_of(slices, step);
  auto* source = static_cast<std::byte*>(in.data);
  const auto part = [&](std::int64_t round, int host, int r) {
    return round_of(slices[static_cast<std::size_t>(hosts_.first(host) + r)], round, step);
  };

  std::byte* memory = received_.at_least(std::min(rounds, kRoundsAhead) * hosts * ranks * step * item);
  const auto place = [&](std::int64_t round, int h) {
    return memory + (round % kRoundsAhead * hosts + h) * ranks * step * item;
  };
  std::vector<std::vector<Wire::Message>> received(static_cast<std::size_t>(kRoundsAhead * hosts));
  const auto messages = [&](std::int64_t round, int h) -> std::vector<Wire::Message>& {
    return received[static_cast<std::size_t>(round % kRoundsAhead * hosts + h)];
  };
  const auto ask = [&](std::int64_t round) {
    for (int h = 0; h < hosts; ++h) {
      messages(round, h).clear();
      for (int r = 0; h != host_ && r < ranks; ++r) {
        messages(round, h).push_back(
            wire_->receive(h, place(round, h) + r * step * item, part(round, host_, r).count * item));
      }
    }
  };

  std::int64_t asked = 0;
  const auto ask_before = [&](std::int64_t end) {
    for (; asked < std::min(rounds, end); ++asked) ask(asked);
  };
  ask_before(kRoundsAhead);

  std::vector<Wire::Message> sent;
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 1; i < hosts; ++i) {
      const int h = (host_ + i) % hosts;
      for (int r = 0; r < ranks; ++r) {
        const Slice theirs = part(round, h, r);
        sent.push_back(wire_->send(h, source + theirs.begin * item, theirs.count * item));
      }
    }
  }

  std::byte* partial = before_.at_least(ranks == 1 ? 0 : step * static_cast<std::int64_t>(c10::elementSize(sum_type)));
  const auto out_item = static_cast<std::int64_t>(c10::elementSize(out.type));
  for (std::int64_t round = 0; round < rounds; ++round) {
    ask_before(round + kRoundsAhead);
    const Elements target{static_cast<std::byte*>(out.data) + round * step * out_item, out.type};
    std::vector<const void*> inputs;
    for (int h = 0; h < hosts; ++h) {
      wait(messages(round, h));
      if (ranks == 1) {
        inputs.push_back(h == host_ ? source + part(round, h, 0).begin * item : place(round, h));
        continue;
      }
      std::vector<Slice> parts;
      for (int r = 0; r < ranks; ++r) {
        const Slice mine = part(round, host_, r);
        parts.push_back(h == host_ ? mine : Slice{r * step, mine.count});
      }
      Reduction stage = h + 1 == hosts ? reduction : Reduction{reduction.op};
      stage.before = h == 0 ? nullptr : partial;
      reduce_slices(group(), h + 1 == hosts ? target : Elements{partial, sum_type},
                    h == host_ ? in : Elements{place(round, h), in.type}, parts, stage);
    }
    if (ranks == 1) reduce_into(target.data, target.type, inputs, in.type, part(round, host_, 0).count, reduction);
    if (done) done(round);
  }
  wait(sent);
}

// A round's results go out while the next is under way. They come to where inputs lie that are read no more: their rank
// has added these up.
void HostsCommunicator::all_reduce_directly(const at::Tensor& t, ReduceOp op) {
  const auto slices = equal_slices(t.numel(), size());
  const auto item = static_cast<std::int64_t>(t.element_size());
  const std::int64_t step = round_length(hosts_.count()), rounds = rounds_of(slices, step);
  const auto slice_on = [&](int host) { return slices[static_cast<std::size_t>(hosts_.first(host) + group().rank())]; };
  const auto memory = [&](const Slice& slice) { return bytes_of(t) + slice.begin * item; };
  std::vector<Wire::Message> results;
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 1; i < hosts_.count(); ++i) {
      const int h = (host_ + hosts_.count() - i) % hosts_.count();
      const Slice theirs = round_of(slice_on(h), round, step);
      results.push_back(wire_->receive(h, memory(theirs), theirs.count * item, Wire::Kind::kResults));
    }
  }
  const Elements own{memory(slice_on(host_)), t.scalar_type()};
  sum_directly(elements_of(t), slices, own, {op}, [&](std::int64_t round) {
    const Slice mine = round_of(slice_on(host_), round, step);
    for (int i = 1; i < hosts_.count(); ++i) {
      results.push_back(
          wire_->send((host_ + i) % hosts_.count(), memory(mine), mine.count * item, Wire::Kind::kResults));
    }
  });
  wait(results);
  for (int h = 0; h < hosts_.count() && group().size() > 1; ++h) {
    std::vector<Flow> flows;
    for (int r = hosts_.first(h); r < hosts_.first(h + 1); ++r) {
      const Slice& slice = slices[static_cast<std::size_t>(r)];
      flows.push_back(whole(slice.count * item, memory(slice)));
    }
    stream(group(), memory(slice_on(h)), flows);
  }
}

}  // namespace tessera::comm
