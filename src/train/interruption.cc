#include "train/interruption.h"

#include <csignal>
#include <initializer_list>

namespace tessera::train {
namespace {

volatile std::sig_atomic_t received = 0;

void on_signal(int signal) {
  received = signal;  // SA_RESETHAND: the next one has its usual effect
}

}  // namespace

Interruption::Interruption() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  for (const int s : {SIGINT, SIGTERM}) ::sigaction(s, &action, nullptr);
}

Interruption::~Interruption() {
  for (const int s : {SIGINT, SIGTERM}) ::signal(s, SIG_DFL);
}

bool Interruption::requested() {
  return received != 0;
}

int Interruption::signal() {
  return received;
}

}  // namespace tessera::train
