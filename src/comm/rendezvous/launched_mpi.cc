#include "comm/rendezvous/launched_mpi.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <system_error>

#include "comm/rendezvous/environment.h"
#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr int kAnyPort = 9;

/// Those that belong to the launcher, as far as its variables tell.
std::vector<std::string> libraries_of_launcher() {
  if (!variable("OMPI_COMM_WORLD_SIZE").empty()) return {"libmpi.so.40"};
  if (!variable("PMI_SIZE").empty()) return {"libmpi.so.12", "libmpich.so.12"};
  if (!variable("PMIX_RANK").empty()) return {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"};
  return {};
}

}  // namespace

std::shared_ptr<MpiSession> launched_mpi(const RankEnvironment& environment, std::chrono::milliseconds timeout) {
  static auto& session = *new std::shared_ptr<MpiSession>;  // MPI starts once
  if (session) return session;
  const std::string wanted = variable("TESSERA_TRANSPORT");
  if (!wanted.empty() && wanted != "gloo" && wanted != "mpi") {
    throw ConfigError(fmt::format("TESSERA_TRANSPORT is '{}': gloo or mpi", wanted), "TESSERA_TRANSPORT");
  }
  const auto names = libraries_of_launcher();
  // With torchrun's variables ranks may have other numbers than MPI's processes.
  const bool chosen = wanted.empty() && !names.empty() && environment.family != "torchrun";
  if (wanted != "mpi" && !chosen) return nullptr;
  if (names.empty()) {
    throw ConfigError(
        "TESSERA_TRANSPORT=mpi: the ranks must be started by mpirun, or by srun with --mpi=pmi2 or "
        "--mpi=pmix, and none of OMPI_COMM_WORLD_SIZE, PMI_SIZE and PMIX_RANK is set",
        "TESSERA_TRANSPORT");
  }
  std::unique_ptr<MpiLibrary> library;
  try {
    library = open_mpi_library(names);
  } catch (const ConfigError& error) {
    const bool can_meet = !variable("MASTER_ADDR").empty() || !environment.slurm_step.empty();
    if (chosen && can_meet) return nullptr;
    throw ConfigError(fmt::format("ranks on several hosts, started by {}, and no MPI can be loaded: {}. Add the folder "
                                  "of its library to LD_LIBRARY_PATH; or set TESSERA_TRANSPORT=gloo, and MASTER_ADDR "
                                  "and MASTER_PORT to the address of rank 0's host and a port that is free there",
                                  environment.family, error.what()),
                      "TESSERA_TRANSPORT");
  }
  session = start_mpi(std::move(library), environment.rank, environment.world_size, timeout);
  return session;
}

Endpoint towards_rank_0(MpiSession& mpi) {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  const Endpoint place{exchange_texts(mpi, name.data())[0], kAnyPort};
  try {
    resolve(place.address);
  } catch (const std::system_error& error) {
    throw ConfigError(
        fmt::format("the host of rank 0 calls itself '{}', and that name leads nowhere from here ({}): set "
                    "MASTER_ADDR to an address of it",
                    place.address, error.what()),
        "MASTER_ADDR");
  }
  return place;
}

std::vector<std::string> exchange_genuine_texts(MpiSession& mpi, const std::string& mine,
                                                const std::function<bool(int rank, const std::string& text)>& genuine) {
  auto texts = exchange_texts(mpi, mine);
  for (std::size_t r = 0; r < texts.size(); ++r) {
    if (genuine(static_cast<int>(r), texts[r])) continue;
    throw CommError(fmt::format("connect: what rank {} says of itself is not signed with this job's secret. Is "
                                "TESSERA_SECRET the same for all ranks, and tessera's version?",
                                r),
                    static_cast<int>(r), "connect", 0);
  }
  return texts;
}

}  // namespace tessera::comm
