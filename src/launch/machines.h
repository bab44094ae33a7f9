#pragma once
// The launchers of a run over several machines whose ranks may be started again (--max_restarts). Each keeps a
// connection with that of the first machine while the ranks run. So all are told when the ranks start again, however
// long theirs compute without a word to others, and it is known who is gone: a machine is left out when its connection
// has ended and it does not call again in time, when its launcher has ended, or when it does not answer.
//
// Who calls proves that it knows TESSERA_SECRET (base/handshake.h). Lines follow: "restart N" (the ranks here have
// ended, or are to), "machines 0 2" (they go on: the answer to all that have come to the restart), "over" (this
// launcher ends).
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "base/handshake.h"

namespace tessera::launch {

class Machines {
 public:
  struct Times {
    std::chrono::milliseconds start{300'000};  // until all have come for the first time
    std::chrono::milliseconds lost{15'000};    // in which one whose connection has ended may call again
    std::chrono::milliseconds answer{60'000};  // for one that is connected to end its ranks
    std::chrono::seconds keep_alive{5};
  };
  struct Place {
    Endpoint of_first;  // where its rank 0 listens, but not while the launchers meet
    int count = 1;      // of machines
    int self = 0;       // --machine_rank
    std::string secret;
  };

  /// Meets the others for the first time. Error where not all come.
  Machines(Place place, const Times& times);
  /// Tells the others that this launcher ends.
  ~Machines();
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  /// Those that take part, in order; the first is 0.
  const std::vector<int>& left() const { return left_; }

  /// What to wait for while the ranks run, and whether another machine asks for this restart: then the ranks here are
  /// to end. Restarts have numbers from 1.
  std::vector<int> waiting() const;
  bool is_called(int restart);

  /// The ranks here have ended, to be started again: waits for the other machines, which is the same on all, and leaves
  /// out those that are gone. Error where the first one is, or has gone on without this one.
  void meet(int restart);

 private:
  struct Peer {
    Descriptor socket;
    std::string text = {};  // the beginning of a line
    int asks_for = 0;       // restart
    std::vector<int> answer = {};
    bool is_over = false;
    bool is_there() const { return socket.get() >= 0; }
    void listen();
    void take(const std::string& line);
    void say(const std::string& line);
  };

  void receive_all(int restart);
  void come(int restart);
  void call(int restart, Deadline deadline);

  Place place_;
  Times times_;
  std::vector<int> left_;
  std::map<int, Peer> peers_;  // of the first machine all others, of these the first
};

}  // namespace tessera::launch
