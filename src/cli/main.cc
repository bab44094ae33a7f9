#include <iostream>

#include "base/process_start.h"
#include "cli/commands.h"
#include "cli/exit_code.h"

int main(int argc, char** argv) {
  tessera::begin_process();
  return tessera::cli::flush_output(tessera::cli::run({argv + 1, argv + argc}, std::cout, std::cerr), std::cerr);
}
