#include "comm/hosts/transport_mpi.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/quiet_thread.h"
#include "comm/hosts/control_store.h"
#include "comm/hosts/mpi_library.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::microseconds kEagerly{50};   // a wait asks without a pause
constexpr std::chrono::microseconds kPause{50};     // between later questions
constexpr std::chrono::milliseconds kTick{1};       // of the thread that asks when nobody waits
constexpr int kTicks = 200;                         // after the last message, for which it asks
constexpr std::chrono::milliseconds kPatience{20};  // with a thread that is in MPI
constexpr std::chrono::seconds kStuck{10};          // in MPI: for good
constexpr std::chrono::seconds kForFinishing{5};    // MPI waits for all ranks then
constexpr std::chrono::milliseconds kForAnswers{50};
constexpr int kTags = 2;  // of a group

/// In a thread of its own, so that it may be left alone. False after the timeout.
template <class Call>
bool done_within(std::chrono::milliseconds timeout, Call call) {
  std::packaged_task<void()> task(std::move(call));
  std::future<void> done = task.get_future();
  start_quiet_thread("tessera-mpi", std::move(task)).detach();
  if (done.wait_for(timeout) != std::future_status::ready) return false;
  done.get();
  return true;
}

}  // namespace

/// This process's part of MPI.
class MpiSession {
 public:
  explicit MpiSession(MpiLibrary& library) : library_(library) {
    asks_ = start_quiet_thread("tessera-mpi", [this] { ask(); });
  }

  /// use(library) while nobody else does. std::runtime_error where MPI is called no more.
  template <class Use>
  auto with(const Use& use) {
    const Lock lock(mutex_, kStuck);
    if (!lock.owns_lock()) throw std::runtime_error("a call of MPI's does not return");
    return use(ready());
  }
  /// False where somebody else is in it for long: it may never come back, after a connection has broken.
  bool test(MpiLibrary::Request& request) {
    const Lock lock(mutex_, kPatience);
    return lock.owns_lock() && ready().test(request);
  }
  void give_up() { given_up_ = true; }
  /// The lowest number that no group of this process has.
  int next_group = 0;

  /// At the process's end. Where not all is well, others may be gone, and MPI would wait for them.
  void finish(bool all_is_well) {
    if (!all_is_well || given_up_) return asks_.detach();
    {
      const Lock lock(mutex_, kStuck);
      stops_ = true;
    }
    wakes_.notify_one();
    asks_.join();
    try {
      done_within(kForFinishing, [this] { leave_together(); });
    } catch (const std::exception&) {  // nobody is left to hear it
    }
  }

 private:
  using Lock = std::unique_lock<std::timed_mutex>;

  MpiLibrary& ready() {
    if (given_up_) throw std::runtime_error("MPI is not used any more since an operation has failed");
    ticks_left_ = kTicks;
    if (sleeps_) wakes_.notify_one();
    return library_;
  }

  /// When MPI is finished it looks after its connections no more, and some other may still want an answer.
  void leave_together() {
    const char own = 0;
    std::vector<char> all(static_cast<std::size_t>(library_.size()));
    library_.all_gather(&own, all.data(), 1);
    for (const auto end = steady_clock::now() + kForAnswers; steady_clock::now() < end;
         std::this_thread::sleep_for(kPause))
      library_.progress();
    library_.finish();
  }

  void ask() {
    Lock lock(mutex_);
    while (!stops_) {
      sleeps_ = ticks_left_ == 0 || given_up_;
      if (sleeps_)
        wakes_.wait_for(lock, kStuck);
      else
        wakes_.wait_for(lock, kTick);
      sleeps_ = false;
      if (stops_ || given_up_ || ticks_left_ == 0) continue;
      --ticks_left_;
      try {
        library_.progress();
      } catch (const std::exception&) {  // whoever waits for a message hears of it
      }
    }
  }

  MpiLibrary& library_;
  std::timed_mutex mutex_;
  std::condition_variable_any wakes_;
  bool sleeps_ = false;
  std::atomic<bool> stops_ = false, given_up_ = false;
  int ticks_left_ = 0;
  std::thread asks_;
};

namespace {

struct MpiMessage : Transport::Message {
  MpiMessage(MpiSession& session, MpiLibrary::Request request) : session(session), request(request) {}
  ~MpiMessage() override {
    if (!done) session.give_up();
  }
  MpiMessage(const MpiMessage&) = delete;
  MpiMessage& operator=(const MpiMessage&) = delete;
  MpiSession& session;
  MpiLibrary::Request request;
  bool done = false;
};

class MpiTransport : public Transport {
 public:
  MpiTransport(std::shared_ptr<MpiSession> session, std::vector<int> ranks, int first_tag)
      : session_(std::move(session)), ranks_(std::move(ranks)), first_tag_(first_tag) {}

  std::unique_ptr<Message> send(int host, const std::byte* data, std::int64_t bytes, int tag) override {
    return started([&](MpiLibrary& mpi) {
      return mpi.send(ranks_[static_cast<std::size_t>(host)], data, static_cast<int>(bytes), first_tag_ + tag);
    });
  }

  std::unique_ptr<Message> receive(int host, std::byte* data, std::int64_t bytes, int tag) override {
    return started([&](MpiLibrary& mpi) {
      return mpi.receive(ranks_[static_cast<std::size_t>(host)], data, static_cast<int>(bytes), first_tag_ + tag);
    });
  }

  bool wait(Message& message) override {
    auto& mine = static_cast<MpiMessage&>(message);
    const auto start = steady_clock::now();
    while (!mine.done) {
      mine.done = session_->test(mine.request);
      if (mine.done) return true;
      if (interrupted_.exchange(false)) return false;
      if (steady_clock::now() - start < kEagerly)
        ::sched_yield();
      else
        std::this_thread::sleep_for(kPause);
    }
    return true;
  }

  void interrupt() override { interrupted_ = true; }
  std::string name() const override { return "MPI"; }

 private:
  template <class Start>
  std::unique_ptr<Message> started(const Start& start) {
    return std::make_unique<MpiMessage>(*session_, session_->with(start));
  }

  std::shared_ptr<MpiSession> session_;
  std::vector<int> ranks_;
  int first_tag_;
  std::atomic<bool> interrupted_ = false;
};

class MpiEngine : public Engine {
 public:
  explicit MpiEngine(std::shared_ptr<MpiSession> session) : session_(std::move(session)) {}

  /// Groups that share a rank have different numbers: the highest of what its ranks have free.
  std::unique_ptr<Transport> connect(const LanePlaces& lane) override {
    ControlStore store(lane.controls, steady_clock::now() + lane.timeout);
    const auto key = [](int host) { return std::to_string(host); };
    const std::string own = std::to_string(session_->next_group);
    store.set(key(lane.host), {own.begin(), own.end()});
    int number = session_->next_group;
    for (int h = 0; h < static_cast<int>(lane.ranks.size()); ++h) {
      const auto theirs = store.get(key(h));
      number = std::max(number, std::atoi(std::string(theirs.begin(), theirs.end()).c_str()));
    }
    store.finish();
    session_->next_group = number + 1;
    const int largest = session_->with([](MpiLibrary& mpi) { return mpi.largest_tag(); });
    const int groups = (largest - 1) / kTags + 1;
    if (number >= groups) {
      throw std::runtime_error(
          fmt::format("MPI has tags up to {}: enough for {} groups of ranks, this is one more", largest, groups));
    }
    return std::make_unique<MpiTransport>(session_, lane.ranks, number * kTags);
  }

 private:
  std::shared_ptr<MpiSession> session_;
};

/// That are not finished: one; more in tests.
std::vector<MpiSession*>& open_sessions() {
  static auto& all = *new std::vector<MpiSession*>;
  return all;
}

void start_library(MpiLibrary& library, std::chrono::milliseconds timeout) {
  if (library.is_in_use()) {
    throw ConfigError("this program has started MPI itself, and tessera cannot share it: TESSERA_TRANSPORT=gloo",
                      "TESSERA_TRANSPORT");
  }
  bool started = false;
  try {
    started = done_within(timeout, [&library] { library.start(); });
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("MPI ({}) does not start: {}", library.version(), error.what()), "TESSERA_TRANSPORT");
  }
  if (!started) {
    throw CommError(fmt::format("MPI ({}) has not started within {} ms. Do all ranks have the same TESSERA_TRANSPORT, "
                                "and all hosts this MPI? Or do without: TESSERA_TRANSPORT=gloo.",
                                library.version(), timeout.count()),
                    -1, "connect", 0);
  }
}

}  // namespace

std::shared_ptr<MpiSession> start_mpi(std::unique_ptr<MpiLibrary> library, int rank, int size,
                                      std::chrono::milliseconds timeout) {
  MpiLibrary& mpi = *library.release();  // for as long as the process lives: a thread may never return from it
  start_library(mpi, timeout);
  if (mpi.rank() != rank || mpi.size() != size) {
    throw ConfigError(
        fmt::format("MPI ({}) says that this is process {} of {}, its launcher's variables say rank {} of {}: use the "
                    "mpirun that belongs to this MPI, or TESSERA_TRANSPORT=gloo",
                    mpi.version(), mpi.rank(), mpi.size(), rank, size),
        "TESSERA_TRANSPORT");
  }
  auto session = std::make_shared<MpiSession>(mpi);
  if (open_sessions().empty()) ::on_exit([](int status, void*) { finish_mpi(status); }, nullptr);
  open_sessions().push_back(session.get());
  return session;
}

void finish_mpi(int status) {
  for (MpiSession* session : std::exchange(open_sessions(), {})) session->finish(status == 0);
}

std::vector<std::string> exchange_texts(MpiSession& session, const std::string& mine) {
  return session.with([&](MpiLibrary& mpi) {
    const auto count = static_cast<std::size_t>(mpi.size());
    const auto length = static_cast<std::int32_t>(mine.size());
    std::vector<std::int32_t> lengths(count);
    mpi.all_gather(&length, lengths.data(), sizeof(length));
    const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
    std::string own = mine, all(count * longest, '\0');
    own.resize(longest);
    mpi.all_gather(own.data(), all.data(), static_cast<int>(longest));
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < count; ++r)
      texts.push_back(all.substr(r * longest, static_cast<std::size_t>(lengths[r])));
    return texts;
  });
}

std::unique_ptr<Engine> make_mpi_engine(std::shared_ptr<MpiSession> session) {
  return std::make_unique<MpiEngine>(std::move(session));
}

}  // namespace tessera::comm
