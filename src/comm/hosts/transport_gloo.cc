#include "comm/hosts/transport_gloo.h"

#include <ATen/ops/from_blob.h>
#include <signal.h>

#include <ctime>
#include <iostream>
#include <mutex>

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/quiet_thread.h"
#include "comm/hosts/control_store.h"

namespace tessera::comm {
namespace {

constexpr int kSilentTag = 100;
constexpr std::chrono::hours kForEver{24 * 365};

/// While it lives, writing to a connection that the peer has closed is an error and no signal of this thread.
class WithoutBrokenPipes {
 public:
  WithoutBrokenPipes() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutBrokenPipes() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutBrokenPipes(const WithoutBrokenPipes&) = delete;
  WithoutBrokenPipes& operator=(const WithoutBrokenPipes&) = delete;

 private:
  sigset_t pipe_{}, before_{};
};

/// gloo says there how many connections it has.
class SilentStandardOutput {
 public:
  SilentStandardOutput() : before_(std::cout.rdbuf(nullptr)) {}
  ~SilentStandardOutput() { std::cout.rdbuf(before_); }
  SilentStandardOutput(const SilentStandardOutput&) = delete;
  SilentStandardOutput& operator=(const SilentStandardOutput&) = delete;

 private:
  std::streambuf* before_;
};

using GlooWork = c10::intrusive_ptr<c10d::Work>;

struct GlooMessage : Transport::Message {
  GlooMessage(int host, GlooWork work) : host(host), work(std::move(work)) {}
  int host;
  GlooWork work;
};

class GlooTransport : public Transport {
 public:
  GlooTransport(std::shared_ptr<::gloo::transport::Device> device, const LanePlaces& lane) {
    const int hosts = static_cast<int>(lane.controls.size());
    auto options = c10d::ProcessGroupGloo::Options::create(lane.timeout);
    options->devices.push_back(std::move(device));
    options->threads = 0;  // for reductions
    auto store = c10::make_intrusive<ControlStore>(lane.controls, std::chrono::steady_clock::now() + lane.timeout);
    {
      const SilentStandardOutput silent;
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, lane.host, hosts, options);
    }
    store->finish();
    for (int h = 0; h < hosts; ++h) silent_.push_back(h == lane.host ? nullptr : post(h, nullptr, 0, kSilentTag));
  }

  std::unique_ptr<Message> send(int host, const std::byte* data, std::int64_t bytes, int tag) override {
    const WithoutBrokenPipes quiet;
    auto tensors = wrap(const_cast<std::byte*>(data), bytes);
    return std::make_unique<GlooMessage>(host, group_->send(tensors, host, tag));
  }

  std::unique_ptr<Message> receive(int host, std::byte* data, std::int64_t bytes, int tag) override {
    return std::make_unique<GlooMessage>(host, post(host, data, bytes, tag));
  }

  bool wait(Message& message) override {
    auto& [host, work] = static_cast<GlooMessage&>(message);
    if (waited(*work)) return true;
    try {
      check(host);
    } catch (const std::exception&) {
      if (was_done(*work)) return true;
      throw;
    }
    return false;
  }

  void interrupt() override {
    const std::lock_guard lock(mutex_);
    if (waiting_ != nullptr) waiting_->abort();
  }

  std::string name() const override { return "gloo"; }

 private:
  static std::vector<at::Tensor> wrap(std::byte* data, std::int64_t bytes) {
    return {at::from_blob(data, {bytes}, at::TensorOptions().dtype(at::kByte))};
  }

  GlooWork post(int host, std::byte* data, std::int64_t bytes, int tag) {
    const WithoutBrokenPipes quiet;
    auto tensors = wrap(data, bytes);
    return group_->recv(tensors, host, tag);
  }

  /// False when interrupted, perhaps though it is done.
  bool waited(c10d::Work& work) {
    set_waiting(&work);
    bool done = false;
    try {
      done = work.wait(kForEver);
    } catch (...) {
      set_waiting(nullptr);
      throw;
    }
    set_waiting(nullptr);
    return done;
  }

  /// Of a message whose connection has broken: whether it was done before. Not every other hears of the break: one that
  /// is posted meanwhile never does.
  static bool was_done(c10d::Work& work) {
    constexpr int kAsks = 2;  // the first may be answered by an interruption that came late
    try {
      for (int asked = 0; asked < kAsks; ++asked)
        if (work.wait(std::chrono::milliseconds(1))) return true;
    } catch (const std::exception&) {  // it was not, by then
    }
    return false;
  }

  void set_waiting(c10d::Work* work) {
    const std::lock_guard lock(mutex_);
    waiting_ = work;
  }

  /// Throws where the connection has broken.
  void check(int host) {
    const GlooWork& silent = silent_[static_cast<std::size_t>(host)];
    silent->abort();
    silent->wait(kForEver);
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::vector<GlooWork> silent_;  // by host
  std::mutex mutex_;
  c10d::Work* waiting_ = nullptr;
};

/// gloo's listener and its thread serve all groups of a process.
class GlooEngine : public Engine {
 public:
  std::unique_ptr<Transport> connect(const LanePlaces& lane) override {
    if (!device_) {
      const WithoutSignals quiet;  // of the thread that it starts
      device_ = c10d::ProcessGroupGloo::createDeviceForHostname(lane.address);
    }
    return std::make_unique<GlooTransport>(device_, lane);
  }

 private:
  std::shared_ptr<::gloo::transport::Device> device_;
};

}  // namespace

std::unique_ptr<Engine> make_gloo_engine() {
  return std::make_unique<GlooEngine>();
}

}  // namespace tessera::comm
