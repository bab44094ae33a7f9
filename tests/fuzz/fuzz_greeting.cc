// What strangers say where ranks of several hosts meet: any bytes as a card (signed, as by somebody who knows the
// secret), as the words of a caller, and as those of a listener. Nobody passes who does not know the key.
#include <fmt/format.h>

#include <system_error>

#include "base/handshake.h"
#include "comm/rendezvous/card.h"
#include "fuzz/socket_pair.h"

namespace {

using namespace tessera;
const std::string kKey = "the session's key";

void read_signed_card(std::string_view words) {
  const std::string body(words), place = "place";
  const std::string mac = to_hex(hmac_sha256(kKey, fmt::format("card\n{}\n{}", place, body)));
  const auto card = comm::read_card(body + mac, kKey, place);
  if (comm::read_card(body + mac, "another secret", place)) __builtin_trap();
  if (!card) return;
  const auto again = comm::read_card(card->to_text(kKey, place), kKey, place);
  if (!again || again->host != card->host || again->nonce != card->nonce) __builtin_trap();
}

void call(std::string_view words) {
  auto connection = fuzz::connection_that_said(words);
  Greeting greeting(std::move(connection.ours), 0, fuzz::soon());
  if (greeting.receive(kKey) != Greeting::State::kRefused) __builtin_trap();
}

void listen(std::string_view words) {
  const auto connection = fuzz::connection_that_said(words);
  try {
    introduce(connection.ours, {42, 1, 0}, kKey, fuzz::soon());
    __builtin_trap();
  } catch (const std::system_error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 30'000) return 0;
  const std::string_view words(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) read_signed_card(words);
  if (data[0] % 3 == 1) call(words);
  if (data[0] % 3 == 2) listen(words);
  return 0;
}
