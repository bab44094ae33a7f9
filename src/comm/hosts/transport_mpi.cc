#include "comm/hosts/transport_mpi.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/quiet_thread.h"
#include "base/short_slice.h"
#include "comm/group/patience.h"
#include "comm/hosts/control_store.h"
#include "comm/hosts/mpi_library.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::microseconds kEagerly{50};    // after something has begun or ended: asks without a pause
constexpr std::chrono::microseconds kPause{50};      // between later questions
constexpr std::chrono::milliseconds kTick{1};        // between questions when nobody waits
constexpr int kTicks = 200;                          // after the last message, for which it asks
constexpr std::chrono::milliseconds kToReturn{500};  // from a call; whoever has not returned by then never does
constexpr std::chrono::milliseconds kLookForReturn{100};
constexpr std::chrono::seconds kForFinishing{5};  // MPI waits for all ranks then
constexpr std::chrono::milliseconds kForAnswers{50};
constexpr int kTags = 2;  // of a group

/// When MPI is finished it looks after its connections no more, and some other may still want an answer.
void leave_together(MpiLibrary& library) {
  const char own = 0;
  std::vector<char> all(static_cast<std::size_t>(library.size()));
  library.all_gather(&own, all.data(), 1);
  for (const auto end = steady_clock::now() + kForAnswers; steady_clock::now() < end;
       std::this_thread::sleep_for(kPause))
    library.progress();
  library.finish();
}

}  // namespace

/// This process's part of MPI, and the thread that calls it.
class MpiSession {
 public:
  struct Message {
    MpiLibrary::Request request{};  // the thread's
    bool is_awaited = false, is_over = false;
    std::exception_ptr failure = nullptr;
  };
  using Start = std::function<MpiLibrary::Request(MpiLibrary&)>;

  /// The thread has a share in it, for it may never come back from a call.
  static std::shared_ptr<MpiSession> make(std::unique_ptr<MpiLibrary> library, std::chrono::milliseconds timeout) {
    auto session = std::make_shared<MpiSession>(std::move(library), timeout);
    start_quiet_thread("tessera-mpi", [session] { session->serve(); }).detach();
    return session;
  }
  MpiSession(std::unique_ptr<MpiLibrary> library, std::chrono::milliseconds timeout)
      : timeout(timeout), library_(std::move(library)) {}

  /// For what needs no call: its version, its sizes.
  const MpiLibrary& library() const { return *library_; }
  const std::chrono::milliseconds timeout;
  /// The lowest number that no group of this process has.
  int next_group = 0;

  /// use(library). False after the timeout: it may still be going on, and must own what it uses.
  bool run(std::chrono::milliseconds timeout, std::function<void(MpiLibrary&)> use) {
    auto task = std::make_shared<std::packaged_task<void(MpiLibrary&)>>(std::move(use));
    std::future<void> done = task->get_future();
    post([task](MpiLibrary& library) { (*task)(library); });
    if (done.wait_for(timeout) != std::future_status::ready) return false;
    done.get();
    return true;
  }

  std::shared_ptr<Message> start(Start begin) {
    auto message = std::make_shared<Message>();
    post([this, message, begin = std::move(begin)](MpiLibrary& library) {
      try {
        message->request = begin(library);
      } catch (const std::exception&) {
        const Lock lock(mutex_);
        end(*message, std::current_exception());
      }
    });
    return message;
  }

  /// False where `interrupted`, which it takes back.
  bool wait(const std::shared_ptr<Message>& message, bool& interrupted) {
    Lock lock(mutex_);
    if (!message->is_over && !message->is_awaited) {
      message->is_awaited = true;
      awaited_.push_back(message);
      wake();
    }
    changed_.wait(lock, [&] { return message->is_over || interrupted || stops_; });
    if (message->failure) std::rethrow_exception(message->failure);
    if (message->is_over) return true;
    check_in_use();
    return interrupted = false;
  }

  void interrupt(bool& interrupted) {
    const Lock lock(mutex_);
    interrupted = true;
    changed_.notify_all();
  }

  /// Where the message has not ended well, nothing is asked of MPI from now on. The call in which the thread is may
  /// still touch the message's memory, and is waited for.
  void give_up(const Message& message) {
    Lock lock(mutex_);
    if (!message.is_over || message.failure) stop(lock);
  }

  /// At the process's end. Where not all is well, others may be gone, and MPI would wait for them.
  void finish(bool all_is_well) {
    const auto leave = [this](MpiLibrary& library) {
      leave_together(library);
      const Lock lock(mutex_);
      stops_ = true;
    };
    try {
      if (all_is_well) run(kForFinishing, leave);
    } catch (const std::exception&) {  // nobody is left to hear it
    }
    Lock lock(mutex_);
    stop(lock);
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void check_in_use() const {
    if (stops_) throw std::runtime_error("MPI is not used any more since an operation has failed");
  }

  void post(std::function<void(MpiLibrary&)> call) {
    const Lock lock(mutex_);
    check_in_use();
    calls_.push_back(std::move(call));
    wake();
  }

  void wake() {
    ticks_left_ = kTicks;
    eager_until_ = steady_clock::now() + kEagerly;
    wakes_.notify_one();
  }

  void stop(Lock& lock) {
    stops_ = true;
    wakes_.notify_one();
    changed_.notify_all();
    for (Patience patience(kToReturn); is_in_mpi_ && !is_stuck_; is_stuck_ = is_in_mpi_ && patience.is_over())
      changed_.wait_for(lock, kLookForReturn);
  }

  void end(Message& message, std::exception_ptr failure) {
    message.failure = std::move(failure);
    message.is_over = true;
    changed_.notify_all();
  }

  void serve() {
    take_short_slices();
    Lock lock(mutex_);
    while (!stops_) {
      if (!calls_.empty()) {
        const auto call = std::move(calls_.front());
        calls_.pop_front();
        without(lock, call);
      } else if (!awaited_.empty()) {
        ask_for_messages(lock);
        pause(lock);
      } else if (ticks_left_ > 0) {
        --ticks_left_;
        without(lock, [](MpiLibrary& library) { library.progress(); });  // whoever waits later hears of a failure
        pause(lock);
      } else {
        wakes_.wait(lock);
      }
    }
  }

  void ask_for_messages(Lock& lock) {
    for (std::size_t i = 0; i < awaited_.size() && !stops_; ++i) {
      const std::shared_ptr<Message> message = awaited_[i];
      bool is_over = message->is_over;
      if (is_over) continue;  // it was never sent
      const auto failure = without(lock, [&](MpiLibrary& library) { is_over = library.test(message->request); });
      if (failure || is_over) end(*message, failure);
    }
    if (std::erase_if(awaited_, [](const auto& message) { return message->is_over; }) > 0)
      eager_until_ = steady_clock::now() + kEagerly;
  }

  void pause(Lock& lock) {
    if (!calls_.empty() || stops_) return;
    if (awaited_.empty()) {
      wakes_.wait_for(lock, kTick);
    } else if (steady_clock::now() > eager_until_) {
      wakes_.wait_for(lock, kPause);
    } else {
      lock.unlock();
      ::sched_yield();
      lock.lock();
    }
  }

  /// use(library) without the lock. What it throws.
  template <class Use>
  std::exception_ptr without(Lock& lock, const Use& use) {
    std::exception_ptr failure;
    is_in_mpi_ = true;
    lock.unlock();
    try {
      use(*library_);
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    lock.lock();
    is_in_mpi_ = false;
    if (stops_) changed_.notify_all();
    return failure;
  }

  const std::unique_ptr<MpiLibrary> library_;
  std::mutex mutex_;
  std::condition_variable wakes_, changed_;  // for the thread, for the others
  std::deque<std::function<void(MpiLibrary&)>> calls_;
  std::vector<std::shared_ptr<Message>> awaited_;
  int ticks_left_ = 0;
  steady_clock::time_point eager_until_;
  bool stops_ = false, is_in_mpi_ = false, is_stuck_ = false;
};

namespace {

struct MpiMessage : Transport::Message {
  MpiMessage(MpiSession& session, std::shared_ptr<MpiSession::Message> message)
      : session(session), message(std::move(message)) {}
  ~MpiMessage() override { session.give_up(*message); }
  MpiMessage(const MpiMessage&) = delete;
  MpiMessage& operator=(const MpiMessage&) = delete;
  MpiSession& session;
  std::shared_ptr<MpiSession::Message> message;
};

class MpiTransport : public Transport {
 public:
  MpiTransport(std::shared_ptr<MpiSession> session, std::vector<int> ranks, int first_tag)
      : session_(std::move(session)), ranks_(std::move(ranks)), first_tag_(first_tag) {}

  std::unique_ptr<Message> send(int host, const std::byte* data, std::int64_t bytes, int tag) override {
    return started([=, rank = rank_of(host), number = first_tag_ + tag](MpiLibrary& mpi) {
      return mpi.send(rank, data, static_cast<int>(bytes), number);
    });
  }

  std::unique_ptr<Message> receive(int host, std::byte* data, std::int64_t bytes, int tag) override {
    return started([=, rank = rank_of(host), number = first_tag_ + tag](MpiLibrary& mpi) {
      return mpi.receive(rank, data, static_cast<int>(bytes), number);
    });
  }

  bool wait(Message& message) override {
    return session_->wait(static_cast<MpiMessage&>(message).message, interrupted_);
  }
  void interrupt() override { session_->interrupt(interrupted_); }
  std::string name() const override { return "MPI"; }

 private:
  int rank_of(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  std::unique_ptr<Message> started(MpiSession::Start begin) {
    return std::make_unique<MpiMessage>(*session_, session_->start(std::move(begin)));
  }

  std::shared_ptr<MpiSession> session_;
  std::vector<int> ranks_;
  int first_tag_;
  bool interrupted_ = false;  // the session's lock guards it
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
    const int largest = session_->library().largest_tag();
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
std::vector<std::shared_ptr<MpiSession>>& open_sessions() {
  static auto& all = *new std::vector<std::shared_ptr<MpiSession>>;
  return all;
}

void start_library(MpiSession& session) {
  const MpiLibrary& library = session.library();
  if (library.is_in_use()) {
    throw ConfigError("this program has started MPI itself, and tessera cannot share it: TESSERA_TRANSPORT=gloo",
                      "TESSERA_TRANSPORT");
  }
  bool started = false;
  try {
    started = session.run(session.timeout, [](MpiLibrary& mpi) { mpi.start(); });
  } catch (const std::exception& error) {
    throw ConfigError(fmt::format("MPI ({}) does not start: {}", library.version(), error.what()), "TESSERA_TRANSPORT");
  }
  if (!started) {
    throw CommError(fmt::format("MPI ({}) has not started within {} ms. Do all ranks have the same TESSERA_TRANSPORT, "
                                "and all hosts this MPI? Or do without: TESSERA_TRANSPORT=gloo.",
                                library.version(), session.timeout.count()),
                    -1, "connect", 0);
  }
}

}  // namespace

std::shared_ptr<MpiSession> start_mpi(std::unique_ptr<MpiLibrary> library, int rank, int size,
                                      std::chrono::milliseconds timeout) {
  auto session = MpiSession::make(std::move(library), timeout);
  start_library(*session);
  const MpiLibrary& mpi = session->library();
  if (mpi.rank() != rank || mpi.size() != size) {
    throw ConfigError(
        fmt::format("MPI ({}) says that this is process {} of {}, its launcher's variables say rank {} of {}: use the "
                    "mpirun that belongs to this MPI, or TESSERA_TRANSPORT=gloo",
                    mpi.version(), mpi.rank(), mpi.size(), rank, size),
        "TESSERA_TRANSPORT");
  }
  if (open_sessions().empty()) ::on_exit([](int status, void*) { finish_mpi(status); }, nullptr);
  open_sessions().push_back(session);
  return session;
}

void finish_mpi(int status) {
  for (const auto& session : std::exchange(open_sessions(), {})) session->finish(status == 0);
}

std::vector<std::string> exchange_texts(MpiSession& session, const std::string& mine) {
  const auto texts = std::make_shared<std::vector<std::string>>();
  const bool all_have_come = session.run(session.timeout, [texts, mine](MpiLibrary& mpi) {
    const auto count = static_cast<std::size_t>(mpi.size());
    const auto length = static_cast<std::int32_t>(mine.size());
    std::vector<std::int32_t> lengths(count);
    mpi.all_gather(&length, lengths.data(), sizeof(length));
    const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
    std::string own = mine, all(count * longest, '\0');
    own.resize(longest);
    mpi.all_gather(own.data(), all.data(), static_cast<int>(longest));
    for (std::size_t r = 0; r < count; ++r)
      texts->push_back(all.substr(r * longest, static_cast<std::size_t>(lengths[r])));
  });
  if (!all_have_come) {
    throw CommError(fmt::format("not all ranks have said through MPI where they are within {} ms; has one ended?",
                                session.timeout.count()),
                    -1, "connect", 0);
  }
  return *texts;
}

std::unique_ptr<Engine> make_mpi_engine(std::shared_ptr<MpiSession> session) {
  return std::make_unique<MpiEngine>(std::move(session));
}

}  // namespace tessera::comm
