#pragma once
// What a rank tells the others at the rendezvous, signed with the job's secret. The place where cards lie is open to
// everybody who reaches it.
#include <optional>
#include <string>

#include "comm/hosts/tcp.h"
#include "comm/rendezvous/secret.h"

namespace tessera::comm {

struct Card {
  std::string host;  // see own_host()
  Endpoint listens;
  Nonce nonce{};  // makes every job's session another, even where secrets are used again

  /// `place`: the same on all ranks, another for each rendezvous, and the rank.
  std::string to_text(const std::string& secret, const std::string& place) const;
};

/// Nothing where the text is no card, or is not signed with this secret for this place.
std::optional<Card> read_card(const std::string& text, const std::string& secret, const std::string& place);

}  // namespace tessera::comm
