// What a peer on another host may say once it is connected: entries of the store through which gloo finds its peers,
// and frames and last words of operations. An error in bounded memory, or an agreement about the operation.
#include <system_error>

#include "comm/hosts/control_store.h"
#include "comm/hosts/wire.h"
#include "comm/shm/mapping.h"
#include "fuzz/socket_pair.h"
#include "support/lonely_host.h"
#include "tessera/base/error.h"

namespace {

using namespace tessera;

void fill_store(std::string_view words) {
  const auto connection = fuzz::connection_that_said(words);
  comm::ControlStore store({nullptr, &connection.ours}, fuzz::soon());
  try {
    store.get("address");
    store.finish();
  } catch (const std::system_error&) {
  }
}

void meet(std::string_view words) {
  auto connection = fuzz::connection_that_said(words);
  const std::chrono::milliseconds timeout(200);
  comm::Group group(std::make_shared<test::LonelyHost>(), comm::map_memory(comm::Control::bytes(1)), {0}, 0, timeout);
  std::vector<comm::Wire::Peer> peers(2);
  peers[1] = {1, std::move(connection.ours)};
  comm::Wire wire(group, std::move(peers), std::make_unique<test::NoTransport>(), timeout);
  const comm::Announcement announcement{comm::Op::kAllReduce, 6, 0, 0, 4, 16};
  try {
    group.post(announcement);
    wire.meet(announcement);
  } catch (const CommError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0 || size > 30'000) return 0;
  const std::string_view words(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0)
    fill_store(words);
  else
    meet(words);
  return 0;
}
