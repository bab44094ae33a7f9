#pragma once
// Takes the calls of other ranks, whoever else may call: strangers that say nothing, nonsense, or very much hold up
// nobody.
#include <deque>
#include <map>
#include <string>

#include "base/tcp.h"
#include "comm/rendezvous/handshake.h"

namespace tessera::comm {

class Reception {
 public:
  /// `rank`: this one; `key`: of the job.
  Reception(Listener listener, int rank, std::string key)
      : listener_(std::move(listener)), rank_(rank), key_(std::move(key)) {}

  /// Waits for this call, which comes once; others are kept until they are asked for. std::system_error (ETIMEDOUT) at
  /// the deadline.
  Descriptor await(const Call& call, Deadline deadline);

 private:
  void wait_for_words(Deadline deadline);
  void accept_all();
  void hear_out();

  Listener listener_;
  int rank_;
  std::string key_;
  std::deque<Greeting> greetings_;  // oldest first
  std::map<Call, Descriptor> called_;
};

}  // namespace tessera::comm
