#pragma once
// The gloo inside libtorch as a Transport: messages between two ranks of a ProcessGroupGloo, nothing else of it.
//
// Note [gloo]
// What it does not do, and who does it here:
//  - it ends the process where a message is longer than what was asked for: the Wire agrees on operations first;
//  - a wait that times out closes all connections: waits have no timeout, interrupt() ends them;
//  - a connection that breaks in the middle of a message leaves that one waiting for ever: for each host there is a
//    receive that nothing is ever sent for, which breaks, too, and is looked at after each interruption;
//  - its rendezvous takes every caller's word: its addresses go through connections that are proven, and each of its
//    own connections must then show a proof of the job's key (prove_lane);
//  - it writes to sockets with SIGPIPE, and to std::cout.
#include "comm/hosts/transport.h"

namespace tessera::comm {

std::unique_ptr<Engine> make_gloo_engine();

}  // namespace tessera::comm
