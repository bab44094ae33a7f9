#include "support/fake_nccl.h"

#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_device.h"
#include "support/fake_streams.h"

namespace tessera::test {
namespace {

constexpr int kSystemError = 2;

/// What the ranks of one communicator share.
struct Room {
  explicit Room(int ranks) : sync(ranks), pointers(static_cast<std::size_t>(ranks)), sent(pointers.size()) {}
  std::barrier<> sync;
  std::vector<const void*> pointers;                  // by rank, of the operation that is running
  std::vector<std::map<int, const std::byte*>> sent;  // by sender: by receiver
};

struct Comm {
  std::shared_ptr<Room> room;
  int rank;
};

struct Transfer {
  bool sends;
  std::byte* memory;
  std::size_t bytes;
  int peer;
  Comm* comm;
  comm::NcclStream stream;
};

std::mutex mutex;
std::map<std::string, std::shared_ptr<Room>> rooms;  // by id
std::map<std::pair<int, std::string>, bool> failures;
std::map<int, bool> later, hanging;
std::condition_variable aborted;
std::atomic<int> ids{0}, open{0};
thread_local std::vector<Transfer> transfers;
thread_local int depth = 0;

int result_of(int rank, const char* function) {
  const std::lock_guard lock(mutex);
  return failures.contains({rank, function}) ? kSystemError : 0;
}

Comm& of(comm::NcclComm comm) {
  return *static_cast<Comm*>(comm);
}

std::size_t size_of(int dtype) {
  switch (dtype) {
    case comm::kNcclUint8:
      return 1;
    case comm::kNcclHalf:
    case comm::kNcclBFloat16:
      return 2;
    case comm::kNcclInt64:
    case comm::kNcclDouble:
      return 8;
    default:
      return 4;
  }
}

int get_version(int* version) {
  *version = 22809;
  return 0;
}
int get_unique_id(comm::NcclUniqueId* id) {
  *id = {};
  std::snprintf(id->bytes, sizeof id->bytes, "fake %d", ++ids);
  return 0;
}
int comm_init_rank(comm::NcclComm* comm, int ranks, comm::NcclUniqueId id, int rank) {
  if (const int code = result_of(rank, "ncclCommInitRank")) return code;
  std::shared_ptr<Room> room;
  {
    const std::lock_guard lock(mutex);
    auto& place = rooms[id.bytes];
    if (!place) place = std::make_shared<Room>(ranks);
    room = place;
  }
  *comm = new Comm{std::move(room), rank};
  ++open;
  return 0;
}
int comm_end(comm::NcclComm comm) {
  delete static_cast<Comm*>(comm);
  --open;
  return 0;
}
int comm_abort(comm::NcclComm c) {
  --open;  // its memory stays: someone may be inside
  {
    const std::lock_guard lock(mutex);
    hanging.erase(of(c).rank);
  }
  aborted.notify_all();
  return 0;
}
int comm_get_async_error(comm::NcclComm comm, int* error) {
  const std::lock_guard lock(mutex);
  *error = later.contains(of(comm).rank) ? kSystemError : 0;
  return 0;
}
const char* get_error_string(int) {
  return "unhandled system error";
}
const char* get_last_error(comm::NcclComm) {
  return "made up";
}

/// The communicator's own part in an operation, for the time when the stream gets there.
struct Part {
  explicit Part(const Comm& comm) : room(comm.room), rank(static_cast<std::size_t>(comm.rank)) {}
  std::shared_ptr<Room> room;
  std::size_t rank;
};

/// run(part), which the stream must be told behind all that was computed.
template <class Run>
int tell(Comm& comm, const char* function, comm::NcclStream stream, Run run) {
  if (const int code = result_of(comm.rank, function)) return code;
  auto* fake = static_cast<FakeStream*>(stream);
  check_waits_for_computation(fake, fake_current_device());
  run_on(fake, [run = std::move(run), part = Part(comm)]() mutable { run(part); });
  return 0;
}

int all_gather(const void* in, void* out, std::size_t count, int dtype, comm::NcclComm c, comm::NcclStream stream) {
  const auto bytes = count * size_of(dtype);
  return tell(of(c), "ncclAllGather", stream, [=](const Part& p) {
    {
      std::unique_lock lock(mutex);
      aborted.wait(lock, [&] { return !hanging.contains(static_cast<int>(p.rank)); });
    }
    const auto* from = static_cast<std::byte*>(real_address(in));
    const std::vector<std::byte> own(from, from + bytes);  // `out` may hold it
    p.room->pointers[p.rank] = own.data();
    p.room->sync.arrive_and_wait();
    for (std::size_t r = 0; r < p.room->pointers.size(); ++r)
      std::memcpy(static_cast<std::byte*>(real_address(out)) + bytes * r, p.room->pointers[r], bytes);
    p.room->sync.arrive_and_wait();
  });
}

template <class T>
void combine(const Part& p, const void* in, void* out, std::size_t count, int op) {
  p.room->pointers[p.rank] = real_address(in);
  p.room->sync.arrive_and_wait();
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = static_cast<const T*>(p.room->pointers[0])[i];
    for (const auto* other : p.room->pointers) {
      const T x = static_cast<const T*>(other)[i];
      if (op == comm::kNcclMax ? x > result[i] : x < result[i]) result[i] = x;
    }
  }
  p.room->sync.arrive_and_wait();
  std::memcpy(real_address(out), result.data(), count * sizeof(T));
  p.room->sync.arrive_and_wait();
}

/// Of maxima and minima of float32 and int64.
int all_reduce(const void* in, void* out, std::size_t count, int dtype, int op, comm::NcclComm c,
               comm::NcclStream stream) {
  if (op == comm::kNcclSum || (dtype != comm::kNcclFloat && dtype != comm::kNcclInt64)) return 4;
  return tell(of(c), "ncclAllReduce", stream, [=](const Part& p) {
    (dtype == comm::kNcclFloat ? combine<float> : combine<std::int64_t>)(p, in, out, count, op);
  });
}

int broadcast(const void* in, void* out, std::size_t count, int dtype, int root, comm::NcclComm c,
              comm::NcclStream stream) {
  return tell(of(c), "ncclBroadcast", stream, [=](const Part& p) {
    p.room->pointers[p.rank] = real_address(in);
    p.room->sync.arrive_and_wait();
    const auto from = static_cast<std::size_t>(root);
    if (p.rank != from) std::memcpy(real_address(out), p.room->pointers[from], count * size_of(dtype));
    p.room->sync.arrive_and_wait();
  });
}

int transfer(bool sends, const void* memory, std::size_t bytes, int peer, comm::NcclComm c, comm::NcclStream stream) {
  if (const int code = result_of(of(c).rank, sends ? "ncclSend" : "ncclRecv")) return code;
  transfers.push_back({sends, static_cast<std::byte*>(real_address(memory)), bytes, peer, &of(c), stream});
  return 0;
}
int send(const void* in, std::size_t count, int dtype, int peer, comm::NcclComm c, comm::NcclStream stream) {
  return transfer(true, in, count * size_of(dtype), peer, c, stream);
}
int recv(void* out, std::size_t count, int dtype, int peer, comm::NcclComm c, comm::NcclStream stream) {
  return transfer(false, out, count * size_of(dtype), peer, c, stream);
}
int group_start() {
  ++depth;
  return 0;
}
int group_end() {
  if (--depth > 0 || transfers.empty()) return 0;
  auto all = std::exchange(transfers, {});
  const auto first = all.front();
  return tell(*first.comm, "ncclGroupEnd", first.stream, [all = std::move(all)](const Part& p) {
    for (const auto& t : all)
      if (t.sends) p.room->sent[p.rank][t.peer] = t.memory;
    p.room->sync.arrive_and_wait();
    for (const auto& t : all)
      if (!t.sends)
        std::memcpy(t.memory, p.room->sent[static_cast<std::size_t>(t.peer)].at(static_cast<int>(p.rank)), t.bytes);
    p.room->sync.arrive_and_wait();
  });
}

constexpr comm::NcclApi kApi = {get_version, get_unique_id,        comm_init_rank,   comm_end,
                                comm_abort,  comm_get_async_error, get_error_string, get_last_error,
                                all_gather,  all_reduce,           broadcast,        send,
                                recv,        group_start,          group_end};

}  // namespace

FakeNccl::FakeNccl() {
  comm::use_nccl(&kApi);
}
FakeNccl::~FakeNccl() {
  comm::use_nccl(nullptr);
  const std::lock_guard lock(mutex);
  rooms.clear(), failures.clear(), later.clear(), hanging.clear();
}
void FakeNccl::fail(int rank, const std::string& function) {
  const std::lock_guard lock(mutex);
  failures[{rank, function}] = true;
}
void FakeNccl::hang(int rank) {
  const std::lock_guard lock(mutex);
  hanging[rank] = true;
}
void FakeNccl::fail_later(int rank) {
  const std::lock_guard lock(mutex);
  later[rank] = true;
}
int FakeNccl::open_communicators() {
  return open;
}

}  // namespace tessera::test
