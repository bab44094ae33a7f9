#include "base/reception.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/log.h"

namespace tessera {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kGreetingTime{5};
constexpr std::size_t kMostGreetings = 256;    // at a time; of more, the oldest are turned away, and ranks call again
constexpr std::ptrdiff_t kMostCallsOfOne = 4;  // that wait; a rank opens one lane after the other
constexpr std::chrono::milliseconds kRest{100};

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
    for (Proven& proven : listen(deadline))
      if (proven.call == call || has_room_for(proven.call)) called_[proven.call] = std::move(proven.socket);
  }
}

bool Reception::has_room_for(const Call& call) const {
  const auto of_one =
      std::count_if(called_.begin(), called_.end(), [&](const auto& kept) { return kept.first.from == call.from; });
  return called_.contains(call) || of_one < kMostCallsOfOne;
}

std::vector<Reception::Proven> Reception::listen(Deadline deadline, std::span<const int> also) {
  wait_for_words(deadline, also);
  auto proven = hear_out();
  accept_all();
  return proven;
}

void Reception::wait_for_words(Deadline deadline, std::span<const int> also) {
  if (rests_until_ && steady_clock::now() >= *rests_until_) rests_until_.reset();
  std::vector<pollfd> waiting = {{rests_until_ ? -1 : listener_.socket.get(), POLLIN, 0}};
  if (rests_until_) deadline = std::min(deadline, *rests_until_);
  for (const Greeting& greeting : greetings_) {
    waiting.push_back({greeting.socket().get(), POLLIN, 0});
    deadline = std::min(deadline, greeting.until());
  }
  for (const int other : also) waiting.push_back({other, POLLIN, 0});
  ::poll(waiting.data(), waiting.size(), milliseconds_until(deadline));  // the callers look at everything anyway
}

void Reception::accept_all() {
  while (!rests_until_) {
    Descriptor socket = accept_one();
    if (socket.get() < 0) return;
    if (greetings_.size() == kMostGreetings) greetings_.pop_front();
    greetings_.emplace_back(std::move(socket), self_, steady_clock::now() + kGreetingTime);
  }
}

/// Where no descriptor is left, that of the oldest caller that has proven nothing yet is taken. Without one the callers
/// wait where they are, and the listener, which would wake every poll(), is left alone for a while.
Descriptor Reception::accept_one() {
  while (true) {
    try {
      return accept_waiting(listener_);
    } catch (const std::system_error& error) {
      if (!greetings_.empty()) {
        greetings_.pop_front();
        continue;
      }
      rests_until_ = steady_clock::now() + kRest;
      if (!has_warned_)
        log_warning(
            fmt::format("other processes of this job call at port {}, and cannot be answered yet ({}): allow "
                        "more open files (ulimit -n)",
                        listener_.port, error.what()));
      has_warned_ = true;
      return Descriptor();
    }
  }
}

std::vector<Reception::Proven> Reception::hear_out() {
  std::vector<Proven> proven;
  std::deque<Greeting> still;
  for (Greeting& greeting : greetings_) {
    const auto state = greeting.receive(key_);
    const bool is_one_of_us = greeting.call().from >= 0 && greeting.call().from < processes_;
    if (state == Greeting::State::kProven && is_one_of_us) proven.push_back({greeting.call(), greeting.take()});
    if (state == Greeting::State::kWaiting && steady_clock::now() < greeting.until()) {
      still.push_back(std::move(greeting));
    }
  }
  greetings_ = std::move(still);
  return proven;
}

}  // namespace tessera
