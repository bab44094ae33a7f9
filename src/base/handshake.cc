#include "base/handshake.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace tessera {
namespace {

constexpr std::uint64_t kChallengeMagic = 0x3263656572677354, kCallMagic = 0x326c6c61637354;

struct Challenge {
  std::uint64_t magic = kChallengeMagic;
  Nonce nonce;
};

/// `side`: "call" or "answer". Both challenges and all that is claimed are in it, so that no proof serves twice.
Mac proof_of(const char* side, const std::string& key, const Call& call, const Nonce& listeners, const Nonce& callers) {
  return hmac_sha256(key, fmt::format("{}\n{}\n{}\n{}\n{}\n{}", side, call.name, call.from, call.to, to_hex(listeners),
                                      to_hex(callers)));
}

/// A few bytes on a fresh connection, whose buffer is empty.
bool send_at_once(const Descriptor& socket, const void* data, std::size_t size) {
  return ::send(socket.get(), data, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

}  // namespace

void introduce(const Descriptor& socket, const Call& call, const std::string& key, Deadline deadline) {
  Challenge challenge;
  receive_all(socket, &challenge, sizeof(challenge), deadline);
  if (challenge.magic != kChallengeMagic)
    throw std::system_error(EACCES, std::generic_category(), "no rank listens there");
  const Nonce own = new_nonce();
  const Greeting::Words words{kCallMagic, call.name, call.from,
                              0,          own,       proof_of("call", key, call, challenge.nonce, own)};
  send_all(socket, &words, sizeof(words), deadline);
  Mac answer{};
  receive_all(socket, &answer, sizeof(answer), deadline);
  if (!equal(answer, proof_of("answer", key, call, challenge.nonce, own))) {
    throw std::system_error(EACCES, std::generic_category(), "who listens there does not prove the job's secret");
  }
}

Greeting::Greeting(Descriptor socket, int rank, Deadline until)
    : socket_(std::move(socket)), until_(until), challenge_(new_nonce()) {
  call_.to = rank;
  const Challenge challenge{kChallengeMagic, challenge_};
  told_ = send_at_once(socket_, &challenge, sizeof(challenge));
}

Greeting::State Greeting::receive(const std::string& key) {
  if (!told_) return State::kRefused;
  while (taken_ < sizeof(words_)) {
    const ssize_t n =
        ::recv(socket_.get(), reinterpret_cast<char*>(&words_) + taken_, sizeof(words_) - taken_, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return State::kWaiting;
    if (n <= 0) return State::kRefused;
    taken_ += static_cast<std::size_t>(n);
  }
  call_ = {words_.name, words_.from, call_.to};
  const bool proven =
      words_.magic == kCallMagic && equal(words_.proof, proof_of("call", key, call_, challenge_, words_.challenge));
  if (!proven) return State::kRefused;
  const Mac answer = proof_of("answer", key, call_, challenge_, words_.challenge);
  return send_at_once(socket_, &answer, sizeof(answer)) ? State::kProven : State::kRefused;
}

}  // namespace tessera
