// tessera-worker: runs one task. `tessera TASK` becomes this program; `tessera launch TASK` starts it once for each
// rank.
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "base/cpu_level.h"
#include "base/process_start.h"
#include "cli/exit_code.h"
#include "comm/hosts/transport_mpi.h"
#include "comm/rendezvous/rank_environment.h"
#include "config/problems.h"
#include "launch/fork_server.h"
#include "launch/launch.h"
#include "tensor/quieten.h"
#include "tessera/base/error.h"
#include "tessera/tensor/allocator.h"
#include "train/interruption.h"
#include "worker/tasks.h"

namespace {

/// In which rank 0 says what is wrong: mpirun and torchrun end all ranks when one has failed.
constexpr std::chrono::seconds kForRank0{2};

int run(const tessera::cli::Arguments& args) {
  tessera::cpu_level();  // refuses a wrong TESSERA_CPU_LEVEL before any work
  for (const auto& task : tessera::worker::tasks()) {
    if (!args.empty() && args[0] == task.name)
      return task.function({args.begin() + 1, args.end()}, std::cout, std::cerr);
  }
  throw tessera::ConfigError("tessera-worker runs tasks for tessera; type 'tessera --help'");
}

/// Whether rank 0 says what is wrong with the words that all ranks have. Our own launcher starts some of a job's ranks,
/// and shows the one that failed first.
bool is_said_by_rank_0() {
  if (tessera::launch::is_launched()) return false;
  try {
    return tessera::comm::read_rank_environment().rank > 0;
  } catch (const tessera::ConfigError&) {
    return false;
  }
}

int run_as_one_of_several(const tessera::cli::Arguments& args) {
  try {
    return run(args);
  } catch (const tessera::config::UsageError&) {
    if (!is_said_by_rank_0()) throw;
    std::this_thread::sleep_for(kForRank0);
    return tessera::cli::kConfigError;
  }
}

/// For `top`, `ps -o comm` and those who look for a rank.
void name_process() {
  if (const char* rank = std::getenv("RANK")) ::prctl(PR_SET_NAME, (std::string("tessera:") + rank).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  tessera::begin_process();
  tessera::launch::become_rank();
  name_process();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write(), which names it
  tessera::tensor::use_step_allocator();
  tessera::tensor::quieten_libtorch();
  int code = tessera::cli::run_guarded([&] { return run_as_one_of_several({argv + 1, argv + argc}); }, std::cerr);
  tessera::train::end_by_signal(code);
  code = tessera::cli::flush_output(code, std::cerr);
  tessera::comm::finish_mpi(code);
  // libtorch's tables of operators are left to the system: taking them down costs 0.1 s, a third of making them.
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}
