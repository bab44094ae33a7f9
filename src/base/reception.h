#pragma once
// Takes the calls of a job's other processes, whoever else may call: strangers that say nothing, nonsense, or very much
// hold up nobody. What it keeps is limited: for callers that have proven nothing yet, and for each process of the job.
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

  /// `self`: whom the calls are for, one of `processes` that are numbered from 0; `key`: of the job.
  Reception(Listener listener, int self, int processes, std::string key)
      : listener_(std::move(listener)), self_(self), processes_(processes), key_(std::move(key)) {}

  /// Waits for this call, which comes once. Others are kept until they are asked for, some of each process; more are
  /// turned away. std::system_error (ETIMEDOUT) at the deadline.
  Descriptor await(const Call& call, Deadline deadline);

  /// Waits once: until a caller says something, one of the descriptors `also` can be read, or the deadline. The calls
  /// that have been proven by then; perhaps none.
  std::vector<Proven> listen(Deadline deadline, std::span<const int> also = {});

 private:
  void wait_for_words(Deadline deadline, std::span<const int> also);
  std::vector<Proven> hear_out();
  void accept_all();
  Descriptor accept_one();
  bool has_room_for(const Call& call) const;

  Listener listener_;
  int self_, processes_;
  std::string key_;
  std::deque<Greeting> greetings_;  // oldest first
  std::map<Call, Descriptor> called_;
  std::optional<Deadline> rests_until_;  // no descriptor was left for a caller
  bool has_warned_ = false;
};

}  // namespace tessera
