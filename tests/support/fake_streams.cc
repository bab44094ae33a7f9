#include "support/fake_streams.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "support/fake_device.h"
#include "tessera/base/error.h"

namespace tessera::test {

class FakeMark {
 public:
  FakeMark(int device, std::int64_t computed, FakeStream* stream);
  void reach() {
    {
      const std::lock_guard lock(mutex_);
      reached_ = true;
    }
    changed_.notify_all();
  }
  bool reached() const {
    const std::lock_guard lock(mutex_);
    return reached_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_; });
  }
  const int device;
  const std::int64_t computed;  // by the device when it was made on the stream that computes; -1: on another
  FakeStream* const stream;     // that other
  const std::int64_t position;  // in it

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
};

class FakeStream {
 public:
  explicit FakeStream(std::uint32_t seed) : random_(seed), thread_([this] { work(); }) {}
  ~FakeStream() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void add(std::function<void()> run) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(run));
      ++told;
    }
    changed_.notify_all();
  }
  std::atomic<std::int64_t> waited{-1};                    // for so much of the device's computation
  std::atomic<std::int64_t> told{0}, awaited{0}, seen{0};  // seen: by the host

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) return;
      auto run = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 8 == 0 ? random_() % 3000 : 0));
      run();
      run = nullptr;
      lock.lock();
    }
  }

  std::mt19937 random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool ends_ = false;
  std::thread thread_;
};

FakeMark::FakeMark(int device, std::int64_t computed, FakeStream* stream)
    : device(device), computed(computed), stream(stream), position(stream == nullptr ? 0 : stream->told.load()) {}

namespace {

void raise(std::atomic<std::int64_t>& to, std::int64_t value) {
  for (auto now = to.load(); now < value && !to.compare_exchange_weak(now, value);) {
  }
}

std::mutex mutex;
std::string first_fault;
std::atomic<std::int64_t> queued_copies{0};
std::vector<std::unique_ptr<FakeStream>> streams;
struct Read {
  FakeStream* stream;
  std::int64_t position;
  int device;
  const void* from;
};
std::vector<Read> reads;
std::atomic<bool> active = false;
std::atomic<std::uint32_t> next_seed = 0;
std::array<std::atomic<std::int64_t>, kFakeDevices> computed{};

}  // namespace

FakeStreams::FakeStreams(std::uint32_t seed) {
  next_seed = seed;
  first_fault.clear();
  active = true;
}
FakeStreams::~FakeStreams() {
  active = false;
  const std::lock_guard lock(mutex);
  reads.clear();
  streams.clear();
}

bool has_fake_streams() {
  return active;
}

std::int64_t new_fake_stream() {
  const std::lock_guard lock(mutex);
  streams.push_back(std::make_unique<FakeStream>(next_seed++));
  return static_cast<std::int64_t>(streams.size());
}

FakeStream* fake_stream(std::int64_t id) {
  if (id == 0) return nullptr;
  const std::lock_guard lock(mutex);
  return streams.at(static_cast<std::size_t>(id - 1)).get();
}

void run_on(FakeStream* stream, std::function<void()> run) {
  stream == nullptr ? run() : stream->add(std::move(run));
}

std::shared_ptr<FakeMark> mark(FakeStream* stream, int device) {
  const auto made = std::make_shared<FakeMark>(
      device, stream == nullptr ? computed[static_cast<std::size_t>(device)].load() : -1, stream);
  run_on(stream, [made] { made->reach(); });
  return made;
}

// Who has seen that it is reached need not wait.
bool reached(const FakeMark& mark) {
  const bool is = mark.reached();
  if (is && mark.stream != nullptr) raise(mark.stream->awaited, mark.position);
  return is;
}

int device_of(const FakeMark& mark) {
  return mark.device;
}
std::int64_t computed_at(const FakeMark& mark) {
  return mark.computed;
}

void wait_for(FakeStream* stream, const std::shared_ptr<FakeMark>& mark) {
  if (stream != nullptr) raise(stream->waited, mark->computed);
  run_on(stream, [mark] { mark->wait(); });
  if (stream == nullptr && mark->stream != nullptr) raise(mark->stream->awaited, mark->position);
}

void count_computation(int device) {
  ++computed[static_cast<std::size_t>(device)];
}

std::int64_t computed_by(int device) {
  return computed[static_cast<std::size_t>(device)];
}

std::int64_t waited_for(const FakeStream& stream) {
  return stream.waited;
}
std::int64_t told(const FakeStream& stream) {
  return stream.told;
}
std::int64_t awaited(const FakeStream& stream) {
  return stream.awaited;
}

void note_read(FakeStream* stream, int device, const void* from) {
  const std::lock_guard lock(mutex);
  std::erase_if(reads, [](const Read& r) { return r.position <= r.stream->seen; });
  reads.push_back({stream, stream->told, device, from});
}
std::int64_t reads_of(int device) {
  const std::lock_guard lock(mutex);
  return std::count_if(reads.begin(), reads.end(),
                       [&](const Read& r) { return r.device == device && r.position > r.stream->seen; });
}
bool any_read(const std::function<bool(const void*)>& like_this) {
  const std::lock_guard lock(mutex);
  return std::any_of(reads.begin(), reads.end(),
                     [&](const Read& r) { return r.position > r.stream->seen && like_this(r.from); });
}
void host_waited(const FakeMark& mark) {
  if (mark.stream != nullptr) raise(mark.stream->seen, mark.position);
}
void host_waited_for_computation() {
  const std::lock_guard lock(mutex);
  for (const auto& stream : streams) raise(stream->seen, stream->awaited);
}

void note_fault(const std::string& what) {
  const std::lock_guard lock(mutex);
  if (first_fault.empty()) first_fault = what;
}
std::string FakeStreams::fault() {
  const std::lock_guard lock(mutex);
  return first_fault;
}

void count_copy() {
  ++queued_copies;
}
std::int64_t FakeStreams::copies() {
  return queued_copies;
}

void check_waits_for_computation(FakeStream* stream, int device) {
  TESSERA_CHECK(stream == nullptr || stream->waited >= computed[static_cast<std::size_t>(device)],
                "a stream begins an operation without waiting for what was computed before it");
}

}  // namespace tessera::test
