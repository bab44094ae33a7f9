#pragma once
// Which machines of a launch go on after a failure: their launchers meet at the first machine, where rank 0 listened
// before and will again.
#include <chrono>
#include <string>
#include <vector>

namespace tessera::launch {

struct Meeting {
  std::string address;                 // of machine 0
  int port = 0;                        // that no rank listens at meanwhile
  std::vector<int> machines;           // that took part so far, by --machine_rank; the first is 0
  int self = 0;                        // this one
  int restart = 1;                     // its number, the same on all
  std::chrono::milliseconds patience;  // of machine 0, for the others; theirs is twice as long
};

/// Those machines whose launchers came, in order: the same on each of them. Error where machine 0 does not answer.
std::vector<int> meet(const Meeting& meeting);

}  // namespace tessera::launch
