#include "comm/rendezvous/reception.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kGreetingTime{5};
constexpr std::size_t kMostGreetings = 256;  // at a time; of more, the oldest are turned away, and ranks call again

}  // namespace

Descriptor Reception::await(const Call& call, Deadline deadline) {
  while (true) {
    if (const auto found = called_.find(call); found != called_.end()) {
      Descriptor socket = std::move(found->second);
      called_.erase(found);
      return socket;
    }
    if (steady_clock::now() >= deadline)
      throw std::system_error(ETIMEDOUT, std::generic_category(), "waiting for its call");
    wait_for_words(deadline);
    hear_out();
    accept_all();
  }
}

void Reception::wait_for_words(Deadline deadline) {
  std::vector<pollfd> waiting = {{listener_.socket.get(), POLLIN, 0}};
  for (const Greeting& greeting : greetings_) {
    waiting.push_back({greeting.socket().get(), POLLIN, 0});
    deadline = std::min(deadline, greeting.until());
  }
  ::poll(waiting.data(), waiting.size(), milliseconds_until(deadline));  // the callers look at everything anyway
}

void Reception::accept_all() {
  while (true) {
    Descriptor socket = accept_waiting(listener_);
    if (socket.get() < 0) return;
    if (greetings_.size() == kMostGreetings) greetings_.pop_front();
    greetings_.emplace_back(std::move(socket), rank_, steady_clock::now() + kGreetingTime);
  }
}

void Reception::hear_out() {
  std::deque<Greeting> still;
  for (Greeting& greeting : greetings_) {
    const auto state = greeting.receive(key_);
    if (state == Greeting::State::kProven) called_[greeting.call()] = greeting.take();
    if (state == Greeting::State::kWaiting && steady_clock::now() < greeting.until()) {
      still.push_back(std::move(greeting));
    }
  }
  greetings_ = std::move(still);
}

}  // namespace tessera::comm
