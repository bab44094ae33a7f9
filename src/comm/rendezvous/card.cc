#include "comm/rendezvous/card.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr const char* kTitle = "tessera card 2";

std::string signature(const std::string& body, const std::string& secret, const std::string& place) {
  return to_hex(hmac_sha256(secret, fmt::format("card\n{}\n{}", place, body)));
}

bool read_number(const std::string& text, int base, int& number) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  return error == std::errc() && stop == end;
}

bool read_nonce(const std::string& text, Nonce& nonce) {
  if (text.size() != 2 * nonce.size()) return false;
  for (std::size_t i = 0; i < nonce.size(); ++i) {
    int byte = 0;
    if (!read_number(text.substr(2 * i, 2), 16, byte) || byte < 0) return false;
    nonce[i] = static_cast<std::uint8_t>(byte);
  }
  return true;
}

}  // namespace

std::string Card::to_text(const std::string& secret, const std::string& place) const {
  const std::string body = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n", kTitle, build, world_size, host, listens.address,
                                       listens.port, to_hex(nonce));
  return body + signature(body, secret, place);
}

std::optional<Card> read_card(const std::string& text, const std::string& secret, const std::string& place) {
  const std::size_t last_line = text.rfind('\n') + 1;  // 0 where there is none
  const std::string body = text.substr(0, last_line), found = text.substr(last_line);
  const std::string expected = signature(body, secret, place);
  Mac a = hmac_sha256(secret, found), b = hmac_sha256(secret, expected);  // equal lengths
  if (!equal(a, b)) return std::nullopt;
  Card card;
  std::istringstream in(body);
  std::string title, world_size, port, nonce, rest;
  std::getline(in, title);
  std::getline(in, card.build);
  std::getline(in, world_size);
  std::getline(in, card.host);
  std::getline(in, card.listens.address);
  std::getline(in, port);
  std::getline(in, nonce);
  const bool whole = title == kTitle && read_number(world_size, 10, card.world_size) &&
                     read_number(port, 10, card.listens.port) && card.listens.port > 0 && card.listens.port < 65536 &&
                     read_nonce(nonce, card.nonce) && !std::getline(in, rest);
  if (!whole || !is_numeric_address(card.listens.address)) return std::nullopt;
  return card;
}

std::string this_build() {
  return "tessera " TESSERA_VERSION " with libtorch " TESSERA_TORCH_VERSION;
}

void check_cards(const std::vector<Card>& cards, int rank) {
  const Card& own = cards[static_cast<std::size_t>(rank)];
  for (std::size_t r = 0; r < cards.size(); ++r) {
    if (cards[r].build != own.build) {
      throw ConfigError(fmt::format("rank {} runs {}, rank {} runs {}: install the same build on all hosts", r,
                                    cards[r].build, rank, own.build),
                        "RANK");
    }
    if (cards[r].world_size != own.world_size) {
      throw ConfigError(
          fmt::format("rank {} was started as one of {} ranks, rank {} as one of {}: start all hosts with "
                      "the same number of processes and machines (WORLD_SIZE)",
                      r, cards[r].world_size, rank, own.world_size),
          "WORLD_SIZE");
    }
  }
}

}  // namespace tessera::comm
