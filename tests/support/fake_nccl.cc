#include "support/fake_nccl.h"

#include <atomic>
#include <barrier>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/fake_device.h"

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
  int ranks, rank;
};

struct Transfer {
  bool sends;
  std::byte* memory;
  std::size_t bytes;
  int peer;
  Comm* comm;
};

std::mutex mutex;
std::map<std::string, std::shared_ptr<Room>> rooms;  // by id
std::map<std::pair<int, std::string>, bool> failures;
std::map<int, bool> later;
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
  *comm = new Comm{std::move(room), ranks, rank};
  ++open;
  return 0;
}
int comm_end(comm::NcclComm comm) {
  delete static_cast<Comm*>(comm);
  --open;
  return 0;
}
int comm_abort(comm::NcclComm) {
  --open;  // its memory stays: someone may be inside
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

int all_gather(const void* in, void* out, std::size_t count, int dtype, comm::NcclComm c, comm::NcclStream) {
  auto& comm = of(c);
  if (const int code = result_of(comm.rank, "ncclAllGather")) return code;
  const auto bytes = count * size_of(dtype);
  auto& room = *comm.room;
  const std::vector<std::byte> own(static_cast<std::byte*>(real_address(in)),
                                   static_cast<std::byte*>(real_address(in)) + bytes);  // `out` may hold it
  room.pointers[static_cast<std::size_t>(comm.rank)] = own.data();
  room.sync.arrive_and_wait();
  for (int r = 0; r < comm.ranks; ++r)
    std::memcpy(static_cast<std::byte*>(real_address(out)) + bytes * static_cast<std::size_t>(r),
                room.pointers[static_cast<std::size_t>(r)], bytes);
  room.sync.arrive_and_wait();
  return 0;
}

template <class T>
void combine(std::vector<T>& result, const Room& room, int op) {
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<const T*>(room.pointers[0])[i];
    for (const auto* other : room.pointers) {
      const T x = static_cast<const T*>(other)[i];
      if (op == comm::kNcclMax ? x > result[i] : x < result[i]) result[i] = x;
    }
  }
}

/// Of maxima and minima of float32 and int64.
int all_reduce(const void* in, void* out, std::size_t count, int dtype, int op, comm::NcclComm c, comm::NcclStream) {
  auto& comm = of(c);
  if (op == comm::kNcclSum || (dtype != comm::kNcclFloat && dtype != comm::kNcclInt64)) return 4;
  auto& room = *comm.room;
  room.pointers[static_cast<std::size_t>(comm.rank)] = real_address(in);
  room.sync.arrive_and_wait();
  const auto run = [&]<class T>(T) {
    std::vector<T> result(count);
    combine(result, room, op);
    room.sync.arrive_and_wait();
    std::memcpy(real_address(out), result.data(), count * sizeof(T));
  };
  dtype == comm::kNcclFloat ? run(float{}) : run(std::int64_t{});
  room.sync.arrive_and_wait();
  return 0;
}

int broadcast(const void* in, void* out, std::size_t count, int dtype, int root, comm::NcclComm c, comm::NcclStream) {
  auto& comm = of(c);
  auto& room = *comm.room;
  room.pointers[static_cast<std::size_t>(comm.rank)] = real_address(in);
  room.sync.arrive_and_wait();
  if (comm.rank != root)
    std::memcpy(real_address(out), room.pointers[static_cast<std::size_t>(root)], count * size_of(dtype));
  room.sync.arrive_and_wait();
  return 0;
}

int transfer(bool sends, const void* memory, std::size_t bytes, int peer, comm::NcclComm c) {
  if (const int code = result_of(of(c).rank, sends ? "ncclSend" : "ncclRecv")) return code;
  transfers.push_back({sends, static_cast<std::byte*>(real_address(memory)), bytes, peer, &of(c)});
  return 0;
}
int send(const void* in, std::size_t count, int dtype, int peer, comm::NcclComm c, comm::NcclStream) {
  return transfer(true, in, count * size_of(dtype), peer, c);
}
int recv(void* out, std::size_t count, int dtype, int peer, comm::NcclComm c, comm::NcclStream) {
  return transfer(false, out, count * size_of(dtype), peer, c);
}
int group_start() {
  ++depth;
  return 0;
}
int group_end() {
  if (--depth > 0 || transfers.empty()) return 0;
  auto& comm = *transfers.front().comm;
  auto& room = *comm.room;
  for (const auto& t : transfers)
    if (t.sends) room.sent[static_cast<std::size_t>(comm.rank)][t.peer] = t.memory;
  room.sync.arrive_and_wait();
  for (const auto& t : transfers)
    if (!t.sends) std::memcpy(t.memory, room.sent[static_cast<std::size_t>(t.peer)].at(comm.rank), t.bytes);
  room.sync.arrive_and_wait();
  transfers.clear();
  return 0;
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
  rooms.clear(), failures.clear(), later.clear();
}
void FakeNccl::fail(int rank, const std::string& function) {
  const std::lock_guard lock(mutex);
  failures[{rank, function}] = true;
}
void FakeNccl::fail_later(int rank) {
  const std::lock_guard lock(mutex);
  later[rank] = true;
}
int FakeNccl::open_communicators() {
  return open;
}

}  // namespace tessera::test
