// Objects of any size between hosts.
#include "comm/hosts/hosts_communicator.h"

namespace tessera::comm {
namespace {

std::vector<std::int64_t> ends_of(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (const std::int64_t size : sizes) ends.push_back(end += size);
  return ends;
}

std::byte* table_bytes(std::vector<std::int64_t>& table) {
  return reinterpret_cast<std::byte*>(table.data());
}

std::vector<Bytes> cut(const Bytes& joined, const std::vector<std::int64_t>& sizes) {
  std::vector<Bytes> result;
  std::size_t begin = 0;
  for (const std::int64_t size : sizes) {
    result.push_back(joined.substr(begin, static_cast<std::size_t>(size)));
    begin += static_cast<std::size_t>(size);
  }
  return result;
}

}  // namespace

// What all ranks announced as the size of their object.
std::vector<std::int64_t> HostsCommunicator::all_sizes() {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(size()));
  for (int r = 0; r < group().size(); ++r)
    sizes[static_cast<std::size_t>(hosts_.first(host_) + r)] = local_->announced_bytes(r);
  Blocks blocks{table_bytes(sizes), {}, nullptr};
  for (int h = 0; h < hosts_.count(); ++h)
    blocks.ends.push_back(hosts_.first(h + 1) * static_cast<std::int64_t>(sizeof(std::int64_t)));
  exchange_blocks(blocks);
  return sizes;
}

std::vector<Bytes> HostsCommunicator::all_gather_objects(const Bytes& object) {
  std::vector<Bytes> result;
  submit_and_wait(object_announcement(Op::kAllGatherObjects, 0, object.size()), [&] {
    const auto sizes = all_sizes();
    Bytes joined(static_cast<std::size_t>(ends_of(sizes).back()), '\0');
    gather_all(bytes_of(object), bytes_of(joined), sizes);
    result = cut(joined, sizes);
  });
  return result;
}

// Each host's first rank collects its host's objects and hands them to the first rank of dst's host.
std::vector<Bytes> HostsCommunicator::gather(const Bytes& object, int dst) {
  arguments().check_root(Op::kGather, dst);
  std::vector<Bytes> result;
  submit_and_wait(object_announcement(Op::kGather, dst, object.size()), [&] {
    const auto sizes = all_sizes();
    const auto ends = ends_of(sizes);
    const auto begin_of = [&](int h) { return h == 0 ? 0 : ends[static_cast<std::size_t>(hosts_.first(h) - 1)]; };
    const int to = hosts_.host_of(dst);
    const bool leads = group().rank() == 0;
    Bytes joined(leads || rank() == dst ? static_cast<std::size_t>(ends.back()) : 0, '\0');
    std::byte* here = leads ? bytes_of(joined) + begin_of(host_) : nullptr;
    std::vector<Flow> flows;
    for (int r = hosts_.first(host_); r < hosts_.first(host_ + 1); ++r) {
      const std::int64_t bytes = sizes[static_cast<std::size_t>(r)];
      flows.push_back(leads ? whole(bytes, here) : Flow{bytes, nullptr, 0, 0});
      if (leads) here += bytes;
    }
    stream(group(), bytes_of(object), flows);
    std::vector<Wire::Message> messages;
    if (leads && host_ != to)
      messages.push_back(wire_->send(to, bytes_of(joined) + begin_of(host_), begin_of(host_ + 1) - begin_of(host_)));
    for (int h = 0; leads && host_ == to && h < hosts_.count(); ++h) {
      if (h != to) messages.push_back(wire_->receive(h, bytes_of(joined) + begin_of(h), begin_of(h + 1) - begin_of(h)));
    }
    wait(messages);
    if (host_ == to) {
      flows.assign(flows.size(), Flow{});
      flows[0] = {ends.back(), rank() == dst ? bytes_of(joined) : nullptr, 0, ends.back()};
      stream(group(), bytes_of(joined), flows);
    }
    if (rank() == dst) result = cut(joined, sizes);
  });
  return result;
}

// The sizes first. Then src's objects go, end to end, to the first rank of its host; that of each other host gets what
// its ranks are to have, of which each takes its own.
Bytes HostsCommunicator::scatter(const std::vector<Bytes>& objects, int src) {
  arguments().check_scatter(objects, rank(), src);
  Bytes result;
  submit_and_wait(object_announcement(Op::kScatter, src, 0), [&] {
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(size()));
    Bytes joined;
    for (std::size_t r = 0; rank() == src && r < sizes.size(); ++r) {
      joined += objects[r];
      sizes[r] = static_cast<std::int64_t>(objects[r].size());
    }
    spread(table_bytes(sizes), static_cast<std::int64_t>(sizes.size() * sizeof(std::int64_t)), src);
    const auto ends = ends_of(sizes);
    const auto begin_of = [&](int r) { return r == 0 ? 0 : ends[static_cast<std::size_t>(r - 1)]; };
    const int from = hosts_.host_of(src);
    const std::int64_t here = begin_of(hosts_.first(host_)), here_bytes = begin_of(hosts_.first(host_ + 1)) - here;
    const bool leads = group().rank() == 0;
    std::vector<Flow> flows(static_cast<std::size_t>(group().size()));
    std::vector<Wire::Message> messages;
    if (from == host_) {
      Bytes copy(leads && rank() != src ? static_cast<std::size_t>(ends.back()) : 0, '\0');
      flows[static_cast<std::size_t>(src - hosts_.first(host_))] = {
          ends.back(), copy.empty() ? nullptr : bytes_of(copy), 0, ends.back()};
      stream(group(), bytes_of(joined), flows);
      if (leads && rank() != src) joined = std::move(copy);
      for (int h = 0; leads && h < hosts_.count(); ++h) {
        const std::int64_t begin = begin_of(hosts_.first(h));
        if (h != host_)
          messages.push_back(wire_->send(h, bytes_of(joined) + begin, begin_of(hosts_.first(h + 1)) - begin));
      }
    } else if (leads) {
      joined.resize(static_cast<std::size_t>(here_bytes));
      messages.push_back(wire_->receive(from, bytes_of(joined), here_bytes));
    }
    wait(messages);
    result.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank())]));
    const std::int64_t begin = begin_of(rank()) - here;
    flows.assign(flows.size(), Flow{});
    flows[0] = {here_bytes, bytes_of(result), begin, begin + static_cast<std::int64_t>(result.size())};
    stream(group(), bytes_of(joined) + (leads && from == host_ ? here : 0), flows);
  });
  return result;
}

Bytes HostsCommunicator::broadcast_object(const Bytes& object, int src) {
  arguments().check_root(Op::kBroadcastObject, src);
  Bytes result = rank() == src ? object : Bytes();
  submit_and_wait(object_announcement(Op::kBroadcastObject, src, object.size()), [&] {
    const auto sizes = all_sizes();
    const std::int64_t bytes = sizes[static_cast<std::size_t>(src)];
    result.resize(static_cast<std::size_t>(bytes));
    if (bytes > 0) spread(bytes_of(result), bytes, src);
  });
  return result;
}

}  // namespace tessera::comm
