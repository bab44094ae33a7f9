#pragma once
// Takes the calls of a job's other processes, whoever else may call: strangers that say nothing, nonsense, or very much
// hold up nobody. What it keeps for callers that have proven nothing yet is limited.
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/handshake.h"
#include "base/tcp.h"

namespace tessera {

class Reception {
 public:
  struct Proven {
    Call call;
    Descriptor socket;
  };

  /// `self`: whom the calls are for; `key`: of the job.
  Reception(Listener listener, int self, std::string key)
      : listener_(std::move(listener)), self_(self), key_(std::move(key)) {}

  /// Waits for this call, which comes once; others are kept until they are asked for. std::system_error (ETIMEDOUT) at
  /// the deadline.
  Descriptor await(const Call& call, Deadline deadline);

  /// Waits once: until a caller says something, one of the descriptors `also` can be read, or the deadline. The calls
  /// that have been proven by then; perhaps none.
  std::vector<Proven> listen(Deadline deadline, std::span<const int> also = {});

 private:
  void wait_for_words(Deadline deadline, std::span<const int> also);
  std::vector<Proven> hear_out();
  void accept_all();
  Descriptor accept_one();

  Listener listener_;
  int self_;
  std::string key_;
  std::deque<Greeting> greetings_;  // oldest first
  std::map<Call, Descriptor> called_;
  std::optional<Deadline> rests_until_;  // no descriptor was left for a caller
  bool has_warned_ = false;
};

}  // namespace tessera
