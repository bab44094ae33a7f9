#include "support/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
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

constexpr int kSystemError = 2, kInvalidUsage = 5;

std::mutex mutex;
std::condition_variable changed;

/// What the ranks of one communicator share.
struct Room {
  explicit Room(int ranks) : calls(static_cast<std::size_t>(ranks)), pointers(calls.size()), sent(calls.size()) {}

  /// Waits for all ranks. Those that met meet again without fail.
  void meet() {
    std::unique_lock lock(mutex);
    const auto mine = meetings;
    if (++here == calls.size()) end_meeting();
    changed.wait(lock, [&] { return meetings != mine; });
  }
  void end_meeting() {
    here = 0;
    ++meetings;
    changed.notify_all();
  }

  std::vector<std::string> calls;                     // by rank, of the operation that is running
  std::vector<const void*> pointers;                  // as well
  std::vector<std::map<int, const std::byte*>> sent;  // by sender: by receiver
  std::size_t here = 0;
  std::int64_t meetings = 0;
};

struct Comm : std::enable_shared_from_this<Comm> {
  Comm(std::shared_ptr<Room> room, std::size_t rank) : room(std::move(room)), rank(rank) {}
  std::shared_ptr<Room> room;
  std::size_t rank;
  int device = fake_current_device();
  bool aborted = false;

  /// Waits for all ranks to make this call; false: the communicator was aborted before. Ranks that make different calls
  /// wait for ever.
  bool begin(const std::string& call, bool hangs) {
    std::unique_lock lock(mutex);
    if (hangs) changed.wait(lock, [&] { return aborted; });
    if (aborted) return false;
    const auto mine = room->meetings;
    room->calls[rank] = call;
    const auto& all = room->calls;
    if (++room->here == all.size() && std::equal(all.begin() + 1, all.end(), all.begin())) room->end_meeting();
    changed.wait(lock, [&] { return aborted || room->meetings != mine; });
    if (room->meetings != mine) return true;
    --room->here;
    return false;
  }
};

struct Transfer {
  bool sends;
  std::byte* memory;
  std::size_t bytes;
  int peer;
  Comm* comm;
  comm::NcclStream stream;
};

std::vector<std::shared_ptr<Comm>> comms;            // until the end: someone may be inside
std::map<std::string, std::shared_ptr<Room>> rooms;  // by id
std::map<std::pair<int, std::string>, bool> failures;
std::map<int, bool> later, hanging;
std::function<void(int, const std::string&)> hook;
std::atomic<int> ids{0}, open{0}, freed_in_calls{0};
thread_local std::vector<Transfer> transfers;
thread_local int depth = 0;
thread_local int group_error = 0;  // of a call in the group, which then does nothing

int result_of(std::size_t rank, const char* function) {
  if (hook) hook(static_cast<int>(rank), function);
  const std::lock_guard lock(mutex);
  return failures.contains({static_cast<int>(rank), function}) ? kSystemError : 0;
}

/// The same of a call with a communicator, which is there until the call returns.
int result_of(const Comm& comm, const char* function) {
  const int code = result_of(comm.rank, function);
  const std::lock_guard lock(mutex);
  if (comm.aborted) ++freed_in_calls;
  return code;
}

bool is_hanging(const Comm& comm) {
  const std::lock_guard lock(mutex);
  return hanging.contains(static_cast<int>(comm.rank));
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
  const auto r = static_cast<std::size_t>(rank);
  if (const int code = result_of(r, "ncclCommInitRank")) return code;
  const std::lock_guard lock(mutex);
  auto& room = rooms[id.bytes];
  if (!room) room = std::make_shared<Room>(ranks);
  comms.push_back(std::make_shared<Comm>(room, r));
  *comm = comms.back().get();
  ++open;
  return 0;
}
int comm_end(comm::NcclComm) {
  --open;
  return 0;
}
int comm_abort(comm::NcclComm c) {
  --open;
  {
    const std::lock_guard lock(mutex);
    of(c).aborted = true;
    hanging.erase(static_cast<int>(of(c).rank));
  }
  changed.notify_all();
  return 0;
}
int comm_get_async_error(comm::NcclComm comm, int* error) {
  const std::lock_guard lock(mutex);
  const bool elsewhere = fake_current_device() != of(comm).device;  // where CUDA would take memory for the question
  *error = elsewhere ? kInvalidUsage : later.contains(static_cast<int>(of(comm).rank)) ? kSystemError : 0;
  return 0;
}
const char* get_error_string(int code) {
  return code == kInvalidUsage ? "asked by a thread of another device" : "unhandled system error";
}
const char* get_last_error(comm::NcclComm) {
  return "made up";
}

/// run(comm), when all ranks have got there on their streams, which must be told behind all that was computed.
template <class Run>
int tell(Comm& comm, const char* function, std::size_t bytes, comm::NcclStream stream, Run run) {
  if (const int code = result_of(comm, function)) return code;
  auto* fake = static_cast<FakeStream*>(stream);
  check_waits_for_computation(fake, fake_current_device());
  const bool hangs = is_hanging(comm);
  run_on(fake, [hangs, own = comm.shared_from_this(), call = function + (" of " + std::to_string(bytes)),
                run = std::move(run)] {
    if (own->begin(call, hangs)) run(*own);
  });
  return 0;
}

int all_gather(const void* in, void* out, std::size_t count, int dtype, comm::NcclComm c, comm::NcclStream stream) {
  const auto bytes = count * size_of(dtype);
  return tell(of(c), "ncclAllGather", bytes, stream, [=](const Comm& p) {
    const auto* from = static_cast<std::byte*>(real_address(in));
    const std::vector<std::byte> own(from, from + bytes);  // `out` may hold it
    p.room->pointers[p.rank] = own.data();
    p.room->meet();
    for (std::size_t r = 0; r < p.room->pointers.size(); ++r)
      std::memcpy(static_cast<std::byte*>(real_address(out)) + bytes * r, p.room->pointers[r], bytes);
    p.room->meet();
  });
}

template <class T>
void combine(const Comm& p, const void* in, void* out, std::size_t count, int op) {
  p.room->pointers[p.rank] = real_address(in);
  p.room->meet();
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = static_cast<const T*>(p.room->pointers[0])[i];
    for (const auto* other : p.room->pointers) {
      const T x = static_cast<const T*>(other)[i];
      if (op == comm::kNcclMax ? x > result[i] : x < result[i]) result[i] = x;
    }
  }
  p.room->meet();
  std::memcpy(real_address(out), result.data(), count * sizeof(T));
  p.room->meet();
}

/// Of maxima and minima of float32 and int64.
int all_reduce(const void* in, void* out, std::size_t count, int dtype, int op, comm::NcclComm c,
               comm::NcclStream stream) {
  if (op == comm::kNcclSum || (dtype != comm::kNcclFloat && dtype != comm::kNcclInt64)) return 4;
  return tell(of(c), "ncclAllReduce", count * size_of(dtype), stream, [=](const Comm& p) {
    (dtype == comm::kNcclFloat ? combine<float> : combine<std::int64_t>)(p, in, out, count, op);
  });
}

int broadcast(const void* in, void* out, std::size_t count, int dtype, int root, comm::NcclComm c,
              comm::NcclStream stream) {
  return tell(of(c), "ncclBroadcast", count * size_of(dtype), stream, [=](const Comm& p) {
    p.room->pointers[p.rank] = real_address(in);
    p.room->meet();
    const auto from = static_cast<std::size_t>(root);
    if (p.rank != from) std::memcpy(real_address(out), p.room->pointers[from], count * size_of(dtype));
    p.room->meet();
  });
}

int transfer(bool sends, const void* memory, std::size_t bytes, int peer, comm::NcclComm c, comm::NcclStream stream) {
  if (const int code = result_of(of(c), sends ? "ncclSend" : "ncclRecv")) return group_error = code;
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
  if (--depth > 0) return 0;
  auto all = std::exchange(transfers, {});
  const int error = std::exchange(group_error, 0);
  if (error != 0 || all.empty()) return error;
  const auto first = all.front();
  return tell(*first.comm, "ncclGroupEnd", first.bytes, first.stream, [all = std::move(all)](const Comm& p) {
    for (const auto& t : all)
      if (t.sends) p.room->sent[p.rank][t.peer] = t.memory;
    p.room->meet();
    for (const auto& t : all)
      if (!t.sends)
        std::memcpy(t.memory, p.room->sent[static_cast<std::size_t>(t.peer)].at(static_cast<int>(p.rank)), t.bytes);
    p.room->meet();
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
  freed_in_calls = 0;
  rooms.clear(), comms.clear(), failures.clear(), later.clear(), hanging.clear();
  hook = nullptr;
}
void FakeNccl::before_calls(std::function<void(int, const std::string&)> call) {
  hook = std::move(call);
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
int FakeNccl::communicators_freed_in_calls() {
  return freed_in_calls;
}

}  // namespace tessera::test
