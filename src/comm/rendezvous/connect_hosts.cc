#include "comm/rendezvous/connect_hosts.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <sstream>

#include "base/cpu_quota.h"
#include "comm/hosts/hosts_communicator.h"
#include "comm/hosts/transport_gloo.h"
#include "comm/rendezvous/card.h"
#include "comm/rendezvous/environment.h"
#include "comm/rendezvous/exchange.h"
#include "comm/rendezvous/launched_mpi.h"
#include "comm/rendezvous/own_address.h"
#include "comm/rendezvous/own_host.h"
#include "comm/shm/shm_host.h"
#include "tessera/base/error.h"

namespace tessera::comm {

void share_cores(int cores, int ranks) {
  if (!variable("OMP_NUM_THREADS").empty()) return;
  const int quota = cpu_quota();
  if (quota > 0) cores = std::min(cores, quota);
  at::set_num_threads(std::clamp(cores / ranks, 1, at::get_num_threads()));
}

namespace {

constexpr int kDefaultPort = 29500;   // torchrun's
constexpr int kMaxRanksOfHost = 250;  // descriptors in one message

Endpoint master(const RankEnvironment& environment) {
  const std::string& step = environment.slurm_step;
  Endpoint result{variable("MASTER_ADDR"), step.empty() ? kDefaultPort : port_of_step(step)};
  if (result.address.empty() && !step.empty()) {
    const char* name = variable("SLURM_STEP_NODELIST").empty() ? "SLURM_JOB_NODELIST" : "SLURM_STEP_NODELIST";
    const std::string nodes = variable(name);
    const auto first = first_node(nodes);
    if (!nodes.empty() && !first) {
      throw ConfigError(
          fmt::format("{} must be a list of nodes as SLURM writes it, such as gpu[03-05,9],x1, it is '{}': "
                      "start the ranks with srun, or set MASTER_ADDR to the address of the host of rank 0",
                      name, nodes),
          name);
    }
    result.address = first.value_or("");
  }
  if (result.address.empty()) {
    throw ConfigError(
        fmt::format("{} of {} ranks are on this host (by {}'s variables), so the others are on other hosts, and "
                    "MASTER_ADDR is not set: set it to the address of the host of rank 0 and MASTER_PORT to a port "
                    "that is free there",
                    environment.local_world_size > 0 ? std::to_string(environment.local_world_size) : "not all",
                    environment.world_size, environment.family),
        "MASTER_ADDR");
  }
  const std::string port = variable("MASTER_PORT");
  if (port.empty()) return result;
  const char* end = port.data() + port.size();
  const auto [stop, error] = std::from_chars(port.data(), end, result.port);
  if (error != std::errc() || stop != end || result.port < 1 || result.port > 65535) {
    throw ConfigError(fmt::format("MASTER_PORT must be a port, 1 to 65535, it is '{}'", port), "MASTER_PORT");
  }
  return result;
}

/// Of what stands between the brackets of a list of nodes, "03-05,9"; nothing where it is something else.
std::optional<std::string> first_number(const std::string& ranges) {
  const auto read = [](const std::string& text, unsigned& number) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && stop == text.data() + text.size();
  };
  std::optional<std::string> first;
  std::istringstream parts(ranges + ",");
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t dash = part.find('-');
    const std::string low = part.substr(0, dash);
    unsigned from = 0, to = 0;
    if (!read(low, from) || !read(dash == std::string::npos ? low : part.substr(dash + 1), to) || to < from)
      return std::nullopt;
    if (!first) first = low;
  }
  return first;
}

/// A host whose own name leads to its loopback address has told that one: it is the master, whose address is known.
void mend_loopback(std::vector<Endpoint>& peers, const Endpoint& meeting_place) {
  if (std::none_of(peers.begin(), peers.end(), [](const auto& peer) { return is_loopback(peer.address); })) return;
  const std::string address = resolve(meeting_place.address);
  if (is_loopback(address)) return;
  for (Endpoint& peer : peers) {
    if (is_loopback(peer.address)) peer.address = address;
  }
}

}  // namespace

std::optional<std::string> first_node(const std::string& node_list) {
  std::optional<std::string> first;
  std::string node;
  for (std::size_t i = 0; i <= node_list.size(); ++i) {
    const char c = i < node_list.size() ? node_list[i] : ',';
    if (c == ',') {
      if (node.empty()) return std::nullopt;
      if (!first) first = node;
      node.clear();
    } else if (c == '[') {
      const std::size_t close = std::min(node_list.find(']', i), node_list.size());
      const auto number = first_number(node_list.substr(i + 1, close - i - 1));
      if (close == node_list.size() || !number) return std::nullopt;
      node += *number;
      i = close;
    } else if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_') {
      node += c;
    } else {
      return std::nullopt;
    }
  }
  return first;
}

int port_of_step(const std::string& slurm_step) {
  unsigned long job = 0, step = 0;
  std::sscanf(slurm_step.c_str(), "%lu.%lu", &job, &step);
  return static_cast<int>(20000 + (16 * job + step) % 10000);
}

std::shared_ptr<Communicator> connect_one_host(int rank, int size, int first_rank, const std::string& job_key,
                                               const HostsRendezvous& rendezvous) {
  if (size > kMaxRanksOfHost) {
    throw ConfigError(fmt::format("{} ranks on one host, at most {} are supported.", size, kMaxRanksOfHost),
                      "WORLD_SIZE");
  }
  ShmWorld world =
      meet_on_this_host({rank, size, first_rank, job_key, rendezvous.init_timeout, rendezvous.environment.world_size});
  share_cores(world.cores, size);
  std::vector<int> members;
  for (int r = 0; r < size; ++r) members.push_back(r);
  return std::make_shared<GroupCommunicator>(std::make_unique<Group>(std::move(world.host), std::move(world.memory),
                                                                     std::move(members), rank, rendezvous.op_timeout));
}

std::shared_ptr<Communicator> connect_hosts(const HostsRendezvous& rendezvous) {
  const RankEnvironment& environment = rendezvous.environment;
  const auto mpi = launched_mpi(environment, rendezvous.init_timeout);
  const Endpoint place = mpi && variable("MASTER_ADDR").empty() ? towards_rank_0(*mpi) : master(environment);
  const std::string secret = job_secret();
  Exchange exchange;
  exchange.store = place;
  exchange.store_is_there = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  exchange.rank = environment.rank;
  exchange.size = environment.world_size;
  // TORCHELASTIC_RESTART_COUNT is each agent's own: it differs where a machine has come later.
  const std::string& step = environment.slurm_step;
  exchange.prefix = fmt::format("tessera/{}{}{}/", step, step.empty() ? "" : "/", rendezvous.connection);
  exchange.timeout = rendezvous.init_timeout;
  const auto seat = [&](int rank) { return fmt::format("{}{}", exchange.prefix, rank); };
  exchange.is_genuine = [&](int rank, const std::string& text) {
    return read_card(text, secret, seat(rank)).has_value();
  };
  const auto cards_of = [&](const std::vector<std::string>& texts) {
    std::vector<Card> cards;
    for (const std::string& text : texts) {
      const auto card = read_card(text, secret, seat(static_cast<int>(cards.size())));
      TESSERA_CHECK(card.has_value(), "the exchange gives genuine cards");
      cards.push_back(*card);
    }
    return cards;
  };
  exchange.check = [&](const std::vector<std::string>& texts) { check_cards(cards_of(texts), environment.rank); };
  try {
    look_up_before(place, SOCK_STREAM, std::chrono::steady_clock::now() + rendezvous.init_timeout);
    const OwnAddress address = own_address_for(place);
    const Network::Times times{rendezvous.init_timeout, keep_alive_time()};
    Listener listener = listen_at({address.listens, 0});
    const Card own{.world_size = environment.world_size,
                   .host = own_host(),
                   .listens = {address.tells, listener.port},
                   .nonce = new_nonce()};
    const std::string mine = own.to_text(secret, seat(environment.rank));
    const auto texts = mpi ? exchange_genuine_texts(*mpi, mine, exchange.is_genuine) : exchange_texts(exchange, mine);
    exchange.check(texts);
    std::vector<Endpoint> peers;
    std::vector<std::string> host_of_rank;
    for (const Card& card : cards_of(texts)) {
      peers.push_back(card.listens);
      host_of_rank.push_back(card.host);
    }
    std::string all_cards = "session\n";
    for (const std::string& text : texts) all_cards += text + "\n";
    // Only who knows the secret can have it, and only ranks that have seen the same cards.
    const Mac session = hmac_sha256(secret, all_cards);
    const std::string key(as_text(session));
    const Hosts hosts = hosts_of_world(host_of_rank);
    const int host = hosts.host_of(environment.rank), first = hosts.first(host);
    // Launchers may put several of a job's "hosts" on one.
    const std::string local_key = fmt::format("{}@{}", to_hex(hmac_sha256(key, "host")), first);
    auto local = connect_one_host(environment.rank - first, hosts.size(host), first, local_key, rendezvous);
    if (hosts.count() == 1) return local;
    mend_loopback(peers, place);
    auto network = std::make_shared<Network>(std::move(listener), std::move(peers), environment.rank, key, times,
                                             mpi ? make_mpi_engine(mpi) : make_gloo_engine());
    return std::make_shared<HostsCommunicator>(std::move(network), std::static_pointer_cast<GroupCommunicator>(local),
                                               hosts, host, "world");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::not_enough_memory) throw;
    throw CommError(fmt::format("rank {}: connect: {}", environment.rank, error.what()), environment.rank, "connect",
                    0);
  }
}

}  // namespace tessera::comm
