#include <iostream>

#include "cli/commands.h"

int main(int argc, char** argv) {
  return tessera::cli::run({argv + 1, argv + argc}, std::cout, std::cerr);
}
