// Ranks that share an address space: threads of one process, or a single one.
#include <sched.h>
#include <unistd.h>

#include <ATen/Parallel.h>

#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/plain_reason.h"
#include "comm/group/group_communicator.h"
#include "comm/shm/mapping.h"

namespace tessera::comm {
namespace {

// What the threads of one world share.
struct World {
  explicit World(int size) : size(size), records(0, size, size) {}
  int size;
  RankRecords records;
  AbortRecord abort{};
  std::mutex mutex;
  struct Offer {
    std::shared_ptr<SharedRegion> region;
    std::size_t takers;
  };
  std::map<Bytes, Offer> offers;
  std::uint64_t tickets = 0;
};

bool has_core_each(int size) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 && size <= CPU_COUNT(&set);
}

class ThreadHost : public Host {
 public:
  ThreadHost(std::shared_ptr<World> world, int rank)
      : world_(std::move(world)), rank_(rank), may_spin_(has_core_each(world_->size)) {
    world_->records[rank].process.store(::getpid());
  }
  std::string backend() const override { return world_->size == 1 ? "solo" : "threads"; }
  int host_rank() const override { return rank_; }
  AbortRecord& abort_record() const override { return world_->abort; }
  RankRecord& rank_record(int host_rank) const override { return world_->records[host_rank]; }
  bool may_spin() const override { return may_spin_; }
  bool has_ended(int) const override { return false; }

  std::shared_ptr<SharedRegion> create(std::int64_t size_bytes, std::span<const int> members, Bytes& ticket) override {
    auto region = map_memory(size_bytes);
    const std::lock_guard lock(world_->mutex);
    ticket = std::to_string(world_->tickets++);
    if (members.size() > 1) world_->offers[ticket] = {region, members.size() - 1};
    return region;
  }
  std::shared_ptr<SharedRegion> open(std::int64_t, const Bytes& ticket) override {
    const std::lock_guard lock(world_->mutex);
    const auto found = world_->offers.find(ticket);
    TESSERA_CHECK(found != world_->offers.end(), "a ticket for memory that nobody offers");
    auto region = found->second.region;
    if (--found->second.takers == 0) world_->offers.erase(found);
    return region;
  }

 private:
  std::shared_ptr<World> world_;
  int rank_;
  bool may_spin_;
};

struct Threads {
  std::shared_ptr<World> world;
  std::vector<std::shared_ptr<Communicator>> ranks;
};

Threads make_world(int size, std::chrono::milliseconds timeout) {
  if (size < 1) throw ConfigError("a group needs at least one rank, got " + std::to_string(size));
  Threads result{std::make_shared<World>(size), {}};
  const auto memory = map_memory(Control::bytes(size));
  std::vector<int> members;
  for (int r = 0; r < size; ++r) members.push_back(r);
  for (int r = 0; r < size; ++r) {
    auto host = std::make_shared<ThreadHost>(result.world, r);
    result.ranks.push_back(
        std::make_shared<GroupCommunicator>(std::make_unique<Group>(std::move(host), memory, members, r, timeout)));
  }
  return result;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return plain_reason(e);
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

std::shared_ptr<Communicator> make_solo() {
  return make_world(1, std::chrono::minutes(5)).ranks.front();
}

std::vector<std::shared_ptr<Communicator>> make_threads(int size, std::chrono::milliseconds timeout) {
  return make_world(size, timeout).ranks;
}

void run_threads(int size, const std::function<void(std::shared_ptr<Communicator>)>& body) {
  Threads threads = make_world(size, std::chrono::minutes(5));
  std::mutex mutex;
  std::exception_ptr first;
  // `communicator` outlives the body: peers shall learn why this rank failed before they see that it has left.
  const auto watched = [&](int rank, const auto& part) {
    try {
      part();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (first) return;
      first = std::current_exception();
      threads.world->abort.set(rank, "Rank " + std::to_string(rank) + ": " + message_of(first));
    }
  };
  const auto play = [&](int rank, std::shared_ptr<Communicator> communicator) {
    watched(rank, [&] {
      at::get_num_threads();
      body(communicator);
    });
  };
  std::vector<std::thread> pool;
  pool.reserve(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    const auto communicator = std::move(threads.ranks[static_cast<std::size_t>(r)]);  // until peers know of a failure
    watched(r, [&] { pool.emplace_back(play, r, communicator); });
  }
  for (std::thread& thread : pool) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace tessera::comm
