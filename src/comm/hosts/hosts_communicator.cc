#include "comm/hosts/hosts_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr std::int64_t kSegmentBytes = 2 << 20;  // of each lane

/// Added to the timeout between hosts, twice to that for a neighbour's data: whoever waits for a rank of its own host
/// knows best which one is missing, and speaks first.
std::chrono::milliseconds grace_of(std::chrono::milliseconds timeout) {
  return std::min<std::chrono::milliseconds>(timeout / 4, std::chrono::seconds(2));
}

}  // namespace

HostsCommunicator::HostsCommunicator(std::shared_ptr<Network> network, std::shared_ptr<GroupCommunicator> local,
                                     Hosts hosts, int host, std::string name)
    : network_(std::move(network)),
      local_(std::move(local)),
      hosts_(std::move(hosts)),
      host_(host),
      name_(std::move(name)) {
  const auto timeout = group().timeout();
  const auto grace = grace_of(timeout);
  const int lane = local_->rank();
  Group::Network serving{.tell_failure = {}, .data_grace = 2 * grace};
  if (lane < hosts_.lanes()) {
    std::vector<int> ranks;
    for (int h = 0; h < hosts_.count(); ++h) ranks.push_back(hosts_.members(h)[static_cast<std::size_t>(lane)]);
    Lane connections = network_->open_lane(ranks, name_);
    std::vector<Wire::Peer> peers(ranks.size());
    for (int h = 0; h < hosts_.count(); ++h) {
      const auto place = static_cast<std::size_t>(h);
      if (h != host_) peers[place] = {ranks[place], std::move(connections.controls[place])};
    }
    wire_ = std::make_unique<Wire>(group(), std::move(peers), std::move(connections.transport), timeout + grace);
    serving.tell_failure = [this](int rank, const std::string& why) { wire_->announce_failure(rank, why); };
  }
  group().serve_network(std::move(serving));
}

HostsCommunicator::~HostsCommunicator() {
  local_->queue().stop();  // what it runs uses the wire
  group().serve_network({});
}

std::unique_ptr<Work> HostsCommunicator::submit(const Announcement& announcement, std::function<void()> run,
                                                Progress progress) {
  auto whole_run = [this, announcement, run = std::move(run)] {
    if (wire_) wire_->meet(announcement);
    run();
  };
  return local_->submit(announcement, std::move(whole_run), progress, shared_from_this());
}

void HostsCommunicator::submit_and_wait(const Announcement& announcement, std::function<void()> run) {
  submit(announcement, std::move(run), Progress::kWhenWaited)->wait();
}

void HostsCommunicator::gather_inside(const std::byte* own, std::byte* out, const std::vector<std::int64_t>& lengths) {
  std::vector<Flow> flows;
  for (const std::int64_t length : lengths) {
    flows.push_back(whole(length, out));
    if (out != nullptr) out += length;
  }
  stream(group(), own, flows);
}

// Of lengths, by rank, one after the other. A rank that is alone on its host sends its bytes from where they are.
void HostsCommunicator::gather_all(const std::byte* own, std::byte* out, const std::vector<std::int64_t>& lengths) {
  Blocks blocks{out, {}, nullptr};
  for (int h = 0; h < hosts_.count(); ++h) {
    blocks.ends.push_back(std::accumulate(lengths.begin(), lengths.begin() + hosts_.first(h + 1), std::int64_t{0}));
  }
  if (group().size() == 1) {
    blocks.own = own;
  } else {
    gather_inside(own, out + blocks.begin(host_),
                  {lengths.begin() + hosts_.first(host_), lengths.begin() + hosts_.first(host_ + 1)});
  }
  exchange_blocks(blocks);
}

// Every lane has its piece of `data`; afterwards every rank of this host has all of it.
void HostsCommunicator::share_lanes(std::byte* data, std::int64_t bytes) {
  if (group().size() == 1) return;
  std::vector<Flow> flows(static_cast<std::size_t>(group().size()));
  const auto pieces = equal_slices(bytes, hosts_.lanes());
  for (std::size_t k = 0; k < pieces.size(); ++k) flows[k] = whole(pieces[k].count, data + pieces[k].begin);
  stream(group(), flows[static_cast<std::size_t>(group().rank())].out, flows);
}

// Every rank of host h has block h; afterwards every rank has all blocks. They go in segments, so that what has come is
// shared inside the host while the rest is on its way. Receives are first, as everywhere: gloo tells the other side of
// each, on the connection that takes the data, and until it hears of one it sends nothing.
void HostsCommunicator::exchange_blocks(const Blocks& blocks) {
  struct Segment {
    int host;
    std::byte* block;
    std::int64_t begin, bytes;
    Wire::Message received;
  };
  std::vector<Segment> segments;
  const std::int64_t step = kSegmentBytes * hosts_.lanes();
  bool more = true;
  for (std::int64_t begin = 0; more; begin += step) {
    more = false;
    for (int i = 0; i < hosts_.count(); ++i) {
      const int h = (host_ + i) % hosts_.count();
      const std::int64_t bytes = std::min(step, blocks.length(h) - begin);
      if (bytes > 0) segments.push_back({h, blocks.data + blocks.begin(h), begin, bytes, {}});
      more = more || bytes > 0;
    }
  }
  const std::byte* source = blocks.own == nullptr ? blocks.data + blocks.begin(host_) : blocks.own;
  const auto piece = [&](const Segment& segment) {
    const Slice slice = equal_slices(segment.bytes, hosts_.lanes())[static_cast<std::size_t>(group().rank())];
    return Slice{segment.begin + slice.begin, slice.count};
  };
  for (Segment& segment : segments) {
    if (!is_lane() || segment.host == host_) continue;
    segment.received = wire_->receive(segment.host, segment.block + piece(segment).begin, piece(segment).count);
  }
  std::vector<Wire::Message> sent;
  for (const Segment& segment : segments) {
    for (int i = 1; is_lane() && segment.host == host_ && i < hosts_.count(); ++i)
      sent.push_back(wire_->send((host_ + i) % hosts_.count(), source + piece(segment).begin, piece(segment).count));
  }
  std::byte* own_block = blocks.data + blocks.begin(host_);
  if (source != own_block) std::memcpy(own_block, source, static_cast<std::size_t>(blocks.length(host_)));
  for (Segment& segment : segments) {
    if (segment.host == host_) continue;
    if (is_lane()) wire_->wait(segment.received);
    share_lanes(segment.block + segment.begin, segment.bytes);
  }
  wait(sent);
}

// Rank src has `data`; afterwards every rank has it. A little goes from its host to all others, more from host to host
// in segments, so that none sends it twice.
void HostsCommunicator::spread(std::byte* data, std::int64_t bytes, int src) {
  const int from = hosts_.host_of(src), hosts = hosts_.count();
  const bool along = bytes > kSegmentBytes, has_it = from == host_;
  if (has_it) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(group().size()));
    lengths[static_cast<std::size_t>(src - hosts_.first(host_))] = bytes;
    gather_inside(data, data, lengths);
  }
  std::vector<int> next;
  for (int i = 1; i < hosts && (along || has_it); ++i) {
    const int h = (host_ + i) % hosts;
    if (h != from && (i == 1 || !along)) next.push_back(h);
  }
  const std::int64_t step = kSegmentBytes * hosts_.lanes();
  const auto piece = [&](std::int64_t begin) {
    const auto lane = static_cast<std::size_t>(group().rank());
    const Slice slice = equal_slices(std::min(step, bytes - begin), hosts_.lanes())[lane];
    return Slice{begin + slice.begin, slice.count};
  };
  std::vector<Wire::Message> received, sent;
  for (std::int64_t begin = 0; is_lane() && !has_it && begin < bytes; begin += step) {
    const int previous = along ? (host_ + hosts - 1) % hosts : from;
    received.push_back(wire_->receive(previous, data + piece(begin).begin, piece(begin).count));
  }
  for (std::int64_t begin = 0; begin < bytes; begin += step) {
    if (is_lane() && !has_it) wire_->wait(received[static_cast<std::size_t>(begin / step)]);
    for (const int h : next) {
      if (is_lane()) sent.push_back(wire_->send(h, data + piece(begin).begin, piece(begin).count));
    }
    if (!has_it) share_lanes(data + begin, std::min(step, bytes - begin));
  }
  wait(sent);
}

std::unique_ptr<Work> HostsCommunicator::all_gather(at::Tensor out, at::Tensor in) {
  arguments().check_all_gather(out, in);
  return submit(tensor_announcement(Op::kAllGather, in), [this, out, in] {
    const auto bytes = static_cast<std::int64_t>(in.nbytes());
    if (bytes > 0) gather_all(bytes_of(in), bytes_of(out), std::vector(static_cast<std::size_t>(size()), bytes));
  });
}

std::unique_ptr<Work> HostsCommunicator::broadcast(at::Tensor t, int src) {
  arguments().check_broadcast(t, src);
  return submit(tensor_announcement(Op::kBroadcast, t, src), [this, t, src] {
    if (t.numel() > 0) spread(bytes_of(t), static_cast<std::int64_t>(t.nbytes()), src);
  });
}

void HostsCommunicator::barrier() {
  submit_and_wait({Op::kBarrier}, [this] {
    std::byte token{};  // for ranks without a lane
    std::vector<Flow> flows(static_cast<std::size_t>(group().size()));
    flows[0] = whole(1, &token);
    stream(group(), &token, flows);
  });
}

std::shared_ptr<Communicator> HostsCommunicator::split(int color) {
  const int number = splits_++;  // all ranks count alike, also those whose part stays on one host
  std::vector<std::int64_t> colors;
  submit_and_wait({Op::kSplit, -1, 0, 0, 0, color}, [&] { colors = all_sizes(); });
  std::vector<std::vector<int>> members;
  int host = -1;
  for (int h = 0; h < hosts_.count(); ++h) {
    std::vector<int> chosen;
    for (int r = hosts_.first(h); r < hosts_.first(h + 1); ++r) {
      if (colors[static_cast<std::size_t>(r)] == color)
        chosen.push_back(hosts_.members(h)[static_cast<std::size_t>(r - hosts_.first(h))]);
    }
    if (chosen.empty()) continue;
    if (h == host_) host = static_cast<int>(members.size());
    members.push_back(std::move(chosen));
  }
  auto local = std::static_pointer_cast<GroupCommunicator>(local_->split(color));
  if (members.size() == 1) return local;
  return std::make_shared<HostsCommunicator>(network_, std::move(local), Hosts(std::move(members)), host,
                                             fmt::format("{}/{}:{}", name_, number, color));
}

std::shared_ptr<SharedRegion> HostsCommunicator::map_shared(std::int64_t size_bytes) {
  if (size_bytes < 0) arguments().reject(Op::kMapShared, fmt::format("{} bytes", size_bytes));
  return nullptr;
}

std::unique_ptr<Work> HostsCommunicator::reduce_shared(at::Tensor out, std::vector<at::Tensor> inputs,
                                                       ReduceOptions options) {
  constexpr Op kOp = Op::kReduceShared;
  if (inputs.size() != static_cast<std::size_t>(size())) {
    arguments().reject(kOp, fmt::format("needs one input for each of {} ranks, got {}", size(), inputs.size()));
  }
  arguments().check_sum(kOp, out, inputs[0].scalar_type(), options);
  arguments().reject(kOp, "ranks on several hosts have no memory of map_shared(); use reduce_scatter");
}

}  // namespace tessera::comm
