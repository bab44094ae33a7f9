#include "comm/shm/shm_host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <system_error>

#include "base/cpu_quota.h"
#include "comm/group/control.h"
#include "comm/shm/mapping.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRetry{20};

// Follows the control block of the world in the same memory.
struct WorldRecord {
  AbortRecord abort;
  std::int32_t cores;  // that any of the ranks may run on, as far as there is time on them
};

std::int64_t world_bytes(int size) {
  return Control::bytes(size) + static_cast<std::int64_t>(sizeof(WorldRecord));
}

Descriptor make_memory(std::int64_t size_bytes) {
  Descriptor memory(memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (memory.get() < 0 || ftruncate(memory.get(), std::max<std::int64_t>(size_bytes, 1)) != 0) {
    throw std::system_error(errno, std::generic_category(), "memfd");
  }
  fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);  // a peer cannot take pages away
  return memory;
}

std::string socket_name(const std::string& key, int rank) {
  return fmt::format("tessera-{}-{:016x}-{}", getuid(), std::hash<std::string>()(key), rank);
}

/// Ranks of this host, by number on it.
[[noreturn]] void fail_rendezvous(const ShmRendezvous& rendezvous, int at_fault, const std::string& message) {
  throw CommError(fmt::format("rank {}: connect: {}", rendezvous.rank + rendezvous.first_rank, message),
                  at_fault + rendezvous.first_rank, "connect", 0);
}

class ShmHost : public Host {
 public:
  ShmHost(const ShmRendezvous& rendezvous, FdSocket socket) : rendezvous_(rendezvous), socket_(std::move(socket)) {}

  std::string backend() const override { return "shm"; }
  int host_rank() const override { return rendezvous_.rank; }
  int first_rank() const override { return rendezvous_.first_rank; }
  AbortRecord& abort_record() const override { return record().abort; }
  RankRecord& rank_record(int host_rank) const override { return (*ranks_)[host_rank]; }
  bool may_spin() const override { return rendezvous_.size <= record().cores; }
  bool has_ended(int host_rank) const override {
    pollfd ended{processes_[static_cast<std::size_t>(host_rank)].get(), POLLIN, 0};
    return poll(&ended, 1, 0) > 0 && (ended.revents & POLLIN) != 0;
  }

  std::shared_ptr<SharedRegion> create(std::int64_t size_bytes, std::span<const int> members, Bytes& ticket) override {
    const Descriptor memory = make_memory(size_bytes);
    ticket = fmt::format("memory {} {}", rendezvous_.rank, tickets_++);
    for (int member : members) {
      if (member != rendezvous_.rank) send(member, ticket, {memory.get()});
    }
    return map_memory(size_bytes, memory.get());
  }

  std::shared_ptr<SharedRegion> open(std::int64_t size_bytes, const Bytes& ticket) override {
    const auto deadline = Clock::now() + rendezvous_.timeout;
    while (Clock::now() < deadline) {
      for (auto message = inbox_.begin(); message != inbox_.end(); ++message) {
        if (message->text != ticket || message->descriptors.size() != 1) continue;
        const Descriptor memory = std::move(message->descriptors[0]);
        inbox_.erase(message);
        return map_memory(size_bytes, memory.get());
      }
      if (auto message = socket_.receive(kRetry); message && message->text.starts_with("memory ")) {
        inbox_.push_back(std::move(*message));
      }
    }
    throw std::runtime_error("the descriptor did not arrive");
  }

  /// Rank 0: collects the others' handles, makes the memory, gives all to all.
  void gather_world() {
    const auto size = static_cast<std::size_t>(rendezvous_.size);
    processes_.resize(size);
    processes_[0] = own_process();
    cpu_set_t cores = own_cores();
    collect_hellos(cores);
    const Descriptor memory = make_memory(world_bytes(rendezvous_.size));
    memory_ = map_memory(world_bytes(rendezvous_.size), memory.get());
    const int quota = cpu_quota();
    record().cores = quota > 0 ? std::min(quota, CPU_COUNT(&cores)) : CPU_COUNT(&cores);
    ranks_ = std::make_unique<RankRecords>(rendezvous_.first_rank, rendezvous_.size, rendezvous_.world_size);
    std::vector<int> descriptors{memory.get(), ranks_->descriptor()};
    for (const Descriptor& process : processes_) descriptors.push_back(process.get());
    for (int r = 1; r < rendezvous_.size; ++r) send(r, "world", descriptors);
    rank_record(rendezvous_.rank).process.store(getpid());
  }

  /// Other ranks: repeats the hello, which may meet no socket or one of a job that is ending, until rank 0 answers.
  void join_world() {
    const Descriptor process = own_process();
    const cpu_set_t cores = own_cores();
    std::string hello = fmt::format("hello {} {} ", rendezvous_.rank, rendezvous_.size);
    hello.append(reinterpret_cast<const char*>(&cores), sizeof(cores));
    const auto deadline = Clock::now() + rendezvous_.timeout;
    auto next = Clock::now();
    while (Clock::now() < deadline) {
      if (Clock::now() >= next && socket_.send(name_of(0), hello, {process.get()})) {
        next = Clock::now() + 25 * kRetry;
      }
      auto message = socket_.receive(kRetry);
      if (!message) continue;
      if (message->text == "size") fail_rendezvous(rendezvous_, 0, "the first rank here has another world size");
      if (message->text != "world" || message->descriptors.size() != static_cast<std::size_t>(rendezvous_.size) + 2)
        continue;
      memory_ = map_memory(world_bytes(rendezvous_.size), message->descriptors[0].get());
      ranks_ = RankRecords::adopt(message->descriptors[1].release(), /*read_only=*/false);
      TESSERA_CHECK(ranks_ != nullptr, "the ranks of a host are of one build");
      processes_.assign(std::make_move_iterator(message->descriptors.begin() + 2),
                        std::make_move_iterator(message->descriptors.end()));
      rank_record(rendezvous_.rank).process.store(getpid());
      return;
    }
    fail_rendezvous(
        rendezvous_, 0,
        fmt::format("no answer from rank {} within {} ms. Are all {} ranks started on this host, with the same "
                    "MASTER_PORT or TESSERA_JOB_ID?",
                    rendezvous_.first_rank, rendezvous_.timeout.count(), rendezvous_.size));
  }

  const std::shared_ptr<SharedRegion>& memory() const { return memory_; }
  int cores() const { return record().cores; }

 private:
  WorldRecord& record() const {
    return *reinterpret_cast<WorldRecord*>(memory_->data() + Control::bytes(rendezvous_.size));
  }
  int named(int rank) const { return rank + rendezvous_.first_rank; }
  std::string name_of(int rank) const { return socket_name(rendezvous_.job_key, rank); }

  static Descriptor own_process() {
    Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
    if (process.get() < 0) throw std::system_error(errno, std::generic_category(), "pidfd_open (Linux 5.3 or later)");
    return process;
  }
  static cpu_set_t own_cores() {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof(cores), &cores);
    return cores;
  }

  void send(int to, std::string_view text, const std::vector<int>& descriptors) const {
    const auto deadline = Clock::now() + rendezvous_.timeout;
    while (!socket_.send(name_of(to), text, descriptors)) {
      const bool ended = processes_[static_cast<std::size_t>(to)].get() >= 0 && has_ended(to);
      if (ended || Clock::now() > deadline) {
        throw CommError(fmt::format("rank {}: rank {} {}", named(rendezvous_.rank), named(to),
                                    ended ? "has ended" : "does not answer"),
                        named(to), "connect", 0);
      }
      usleep(1000);
    }
  }

  void collect_hellos(cpu_set_t& cores) {
    const auto deadline = Clock::now() + rendezvous_.timeout;
    int missing = rendezvous_.size - 1;
    while (missing > 0) {
      if (Clock::now() > deadline) fail_missing();
      auto message = socket_.receive(kRetry);
      if (!message || message->descriptors.size() != 1 || message->text.size() < sizeof(cpu_set_t)) continue;
      const std::size_t words = message->text.size() - sizeof(cpu_set_t);
      int rank = 0, size = 0;
      if (std::sscanf(message->text.substr(0, words).c_str(), "hello %d %d", &rank, &size) != 2) continue;
      if (size != rendezvous_.size || rank < 1 || rank >= size) {
        socket_.send(name_of(rank), "size", {});
        fail_rendezvous(rendezvous_, rank,
                        fmt::format("rank {} came with world size {}, expected {}", rank, size, rendezvous_.size));
      }
      Descriptor& process = processes_[static_cast<std::size_t>(rank)];
      if (process.get() < 0) --missing;
      process = std::move(message->descriptors[0]);
      cpu_set_t theirs;
      std::memcpy(&theirs, message->text.data() + words, sizeof(theirs));
      CPU_OR(&cores, &cores, &theirs);
    }
  }

  [[noreturn]] void fail_missing() const {
    std::string missing;
    int first = -1;
    for (int r = 1; r < rendezvous_.size; ++r) {
      if (processes_[static_cast<std::size_t>(r)].get() >= 0) continue;
      if (first < 0) first = r;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", named(r));
    }
    fail_rendezvous(
        rendezvous_, first,
        fmt::format("after {} ms these of {} ranks are missing: {}. Did they start, on this host, with the same "
                    "MASTER_PORT or TESSERA_JOB_ID?",
                    rendezvous_.timeout.count(), rendezvous_.size, missing));
  }

  ShmRendezvous rendezvous_;
  FdSocket socket_;
  std::vector<Descriptor> processes_;  // by rank
  std::shared_ptr<SharedRegion> memory_;
  std::unique_ptr<RankRecords> ranks_;
  std::deque<FdMessage> inbox_;
  std::int64_t tickets_ = 0;
};

// A job that is just ending may still hold the name for a moment.
FdSocket bind_socket(const ShmRendezvous& rendezvous) {
  const auto deadline = Clock::now() + std::min(rendezvous.timeout, std::chrono::milliseconds(10'000));
  while (true) {
    try {
      return FdSocket(socket_name(rendezvous.job_key, rendezvous.rank));
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::address_in_use) throw;
      if (Clock::now() < deadline) {
        usleep(20'000);
        continue;
      }
      fail_rendezvous(
          rendezvous, rendezvous.rank,
          fmt::format("another process is rank {} of this job already. Give each job its own MASTER_PORT or "
                      "TESSERA_JOB_ID, each process its own RANK.",
                      rendezvous.rank + rendezvous.first_rank));
    }
  }
}

}  // namespace

ShmWorld meet_on_this_host(const ShmRendezvous& rendezvous) {
  try {
    auto host = std::make_shared<ShmHost>(rendezvous, bind_socket(rendezvous));
    if (rendezvous.rank == 0) {
      host->gather_world();
    } else {
      host->join_world();
    }
    return {host, host->memory(), host->cores()};
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::not_enough_memory) throw;
    fail_rendezvous(rendezvous, rendezvous.rank, error.what());
  }
}

}  // namespace tessera::comm
