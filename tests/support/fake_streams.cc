#include "support/fake_streams.h"

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
  explicit FakeMark(std::int64_t computed) : computed(computed) {}
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
  const std::int64_t computed;  // by the device when it was made on the stream that computes; -1: on another

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
    }
    changed_.notify_all();
  }
  std::atomic<std::int64_t> waited{-1};  // for so much of the device's computation

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

namespace {

std::mutex mutex;
std::vector<std::unique_ptr<FakeStream>> streams;
std::atomic<bool> active = false;
std::atomic<std::uint32_t> next_seed = 0;
std::array<std::atomic<std::int64_t>, kFakeDevices> computed{};

}  // namespace

FakeStreams::FakeStreams(std::uint32_t seed) {
  next_seed = seed;
  active = true;
}
FakeStreams::~FakeStreams() {
  active = false;
  const std::lock_guard lock(mutex);
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
  const auto made =
      std::make_shared<FakeMark>(stream == nullptr ? computed[static_cast<std::size_t>(device)].load() : -1);
  run_on(stream, [made] { made->reach(); });
  return made;
}

bool reached(const FakeMark& mark) {
  return mark.reached();
}

void wait_for(FakeStream* stream, const std::shared_ptr<FakeMark>& mark) {
  if (stream != nullptr && mark->computed > stream->waited) stream->waited = mark->computed;
  run_on(stream, [mark] { mark->wait(); });
}

void count_computation(int device) {
  ++computed[static_cast<std::size_t>(device)];
}

void check_waits_for_computation(FakeStream* stream, int device) {
  TESSERA_CHECK(stream == nullptr || stream->waited >= computed[static_cast<std::size_t>(device)],
                "a stream begins an operation without waiting for what was computed before it");
}

}  // namespace tessera::test
