// Objects of any size, and what is made from them: subgroups and shared memory.
#include <fmt/format.h>

#include <algorithm>

#include "comm/group/group_communicator.h"

namespace tessera::comm {

std::int64_t GroupCommunicator::announced_bytes(int r) const {
  return group_->control().announcement(group_->current(), r).bytes;
}

std::vector<Bytes> GroupCommunicator::gather(const Bytes& object, int dst) {
  arguments().check_root(Op::kGather, dst);
  std::vector<Bytes> result(rank() == dst ? static_cast<std::size_t>(size()) : 0);
  start_and_complete(object_announcement(Op::kGather, dst, object.size()), [&] {
    std::vector<Flow> flows;
    for (int r = 0; r < size(); ++r) {
      const std::int64_t bytes = announced_bytes(r);
      if (rank() != dst) {
        flows.push_back({bytes, nullptr, 0, 0});
        continue;
      }
      Bytes& to = result[static_cast<std::size_t>(r)];
      to.resize(static_cast<std::size_t>(bytes));
      flows.push_back(whole(bytes, bytes_of(to)));
    }
    stream(*group_, bytes_of(object), flows);
  });
  return result;
}

std::vector<Bytes> GroupCommunicator::all_gather_objects(const Bytes& object) {
  std::vector<Bytes> result(static_cast<std::size_t>(size()));
  start_and_complete(object_announcement(Op::kAllGatherObjects, 0, object.size()), [&] {
    std::vector<Flow> flows;
    for (int r = 0; r < size(); ++r) {
      Bytes& to = result[static_cast<std::size_t>(r)];
      to.resize(static_cast<std::size_t>(announced_bytes(r)));
      flows.push_back(whole(announced_bytes(r), bytes_of(to)));
    }
    stream(*group_, bytes_of(object), flows);
  });
  return result;
}

// The sizes first, then all objects end to end, of which each rank keeps its own.
Bytes GroupCommunicator::scatter(const std::vector<Bytes>& objects, int src) {
  arguments().check_scatter(objects, rank(), src);
  Bytes result;
  start_and_complete(object_announcement(Op::kScatter, src, 0), [&] {
    std::vector<std::int64_t> ends(static_cast<std::size_t>(size()));
    Bytes joined;
    for (std::size_t r = 0; rank() == src && r < ends.size(); ++r) {
      joined += objects[r];
      ends[r] = static_cast<std::int64_t>(joined.size());
    }
    std::vector<Flow> flows(static_cast<std::size_t>(size()));
    auto* table = reinterpret_cast<std::byte*>(ends.data());
    flows[static_cast<std::size_t>(src)] = whole(static_cast<std::int64_t>(ends.size() * sizeof(std::int64_t)), table);
    stream(*group_, table, flows);
    const std::int64_t begin = rank() == 0 ? 0 : ends[static_cast<std::size_t>(rank() - 1)];
    const std::int64_t end = ends[static_cast<std::size_t>(rank())];
    result.resize(static_cast<std::size_t>(end - begin));
    flows[static_cast<std::size_t>(src)] = {ends.back(), bytes_of(result), begin, end};
    stream(*group_, bytes_of(joined), flows);
  });
  return result;
}

Bytes GroupCommunicator::broadcast_object(const Bytes& object, int src) {
  arguments().check_root(Op::kBroadcastObject, src);
  Bytes result = rank() == src ? object : Bytes();
  start_and_complete(object_announcement(Op::kBroadcastObject, src, object.size()), [&] {
    const std::int64_t bytes = announced_bytes(src);
    result.resize(static_cast<std::size_t>(bytes));
    std::vector<Flow> flows(static_cast<std::size_t>(size()));
    flows[static_cast<std::size_t>(src)] = whole(bytes, bytes_of(result));
    stream(*group_, bytes_of(result), flows);
  });
  return result;
}

// What goes wrong on this host alone is made known to all.
template <class Call>
auto GroupCommunicator::sharing(std::int64_t size_bytes, const Call& call) {
  try {
    return call();
  } catch (const CommError& error) {
    fail(error.rank, error.what());
  } catch (const std::exception& error) {
    const int self = group_->name(group_->rank());
    fail(self, fmt::format("rank {}: no shared memory of {} bytes: {}", self, size_bytes, error.what()));
  }
}

std::shared_ptr<SharedRegion> GroupCommunicator::share(std::int64_t size_bytes, const std::vector<int>& members) {
  Host& host = group_->host();
  const int leader = members.front();
  std::shared_ptr<SharedRegion> region;
  Bytes ticket;
  if (leader == host.host_rank())
    region = sharing(size_bytes, [&] { return host.create(size_bytes, members, ticket); });
  const std::vector<Bytes> tickets = all_gather_objects(ticket);
  if (region) return region;
  const auto& ranks = group_->members();
  const auto at = std::find(ranks.begin(), ranks.end(), leader) - ranks.begin();
  return sharing(size_bytes, [&] { return host.open(size_bytes, tickets[static_cast<std::size_t>(at)]); });
}

std::shared_ptr<Communicator> GroupCommunicator::split(int color) {
  std::vector<int> members;
  int position = 0;
  start_and_complete({Op::kSplit, -1, 0, 0, 0, color}, [&] {
    for (int r = 0; r < size(); ++r) {
      if (announced_bytes(r) != color) continue;
      if (r == rank()) position = static_cast<int>(members.size());
      members.push_back(group_->members()[static_cast<std::size_t>(r)]);
    }
  });
  auto memory = share(Control::bytes(static_cast<int>(members.size())), members);
  return std::make_shared<GroupCommunicator>(std::make_unique<Group>(group_->host_pointer(), std::move(memory),
                                                                     std::move(members), position, group_->timeout()));
}

std::shared_ptr<SharedRegion> GroupCommunicator::map_shared(std::int64_t size_bytes) {
  if (size_bytes < 0) arguments().reject(Op::kMapShared, fmt::format("{} bytes", size_bytes));
  start_and_complete({Op::kMapShared, -1, 0, 0, size_bytes, 0}, [] {});
  auto region = share(size_bytes, group_->members());
  group_->host().remember(region);
  return region;
}

}  // namespace tessera::comm
