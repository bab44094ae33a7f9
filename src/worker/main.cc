// tessera-worker: runs one task. `tessera TASK` becomes this program; `tessera launch TASK` starts it once for each
// rank.
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/cpu_level.h"
#include "base/process_start.h"
#include "cli/exit_code.h"
#include "comm/hosts/transport_mpi.h"
#include "launch/fork_server.h"
#include "tensor/quieten.h"
#include "tessera/base/error.h"
#include "tessera/tensor/allocator.h"
#include "train/interruption.h"
#include "worker/tasks.h"

namespace {

int run(const tessera::cli::Arguments& args) {
  tessera::cpu_level();  // refuses a wrong TESSERA_CPU_LEVEL before any work
  for (const auto& task : tessera::worker::tasks()) {
    if (!args.empty() && args[0] == task.name)
      return task.function({args.begin() + 1, args.end()}, std::cout, std::cerr);
  }
  throw tessera::ConfigError("tessera-worker runs tasks for tessera; type 'tessera --help'");
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
  int code = tessera::cli::run_guarded([&] { return run({argv + 1, argv + argc}); }, std::cerr);
  tessera::train::end_by_signal(code);
  code = tessera::cli::flush_output(code, std::cerr);
  tessera::comm::finish_mpi(code);
  // libtorch's tables of operators are left to the system: taking them down costs 0.1 s, a third of making them.
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}
