#pragma once
// What a rank tells the others at the rendezvous, signed with the job's secret. The place where cards lie is open to
// everybody who reaches it.
#include <optional>
#include <string>
#include <vector>

#include "base/secret.h"
#include "base/tcp.h"

namespace tessera::comm {

/// "tessera 0.1.0 with libtorch 2.13.0"
std::string this_build();

struct Card {
  std::string build = this_build();
  int world_size = 1;
  std::string host;  // see own_host()
  Endpoint listens;
  Nonce nonce{};  // makes every job's session another, even where secrets are used again

  /// `place`: the same on all ranks, another for each rendezvous, and the rank.
  std::string to_text(const std::string& secret, const std::string& place) const;
};

/// Nothing where the text is no card, or is not signed with this secret for this place.
std::optional<Card> read_card(const std::string& text, const std::string& secret, const std::string& place);

/// ConfigError where a rank's card is not of the build and the world size of this rank's.
void check_cards(const std::vector<Card>& cards, int rank);

}  // namespace tessera::comm
