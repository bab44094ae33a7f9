#include "tessera/base/error.h"

#include <cstring>

namespace tessera::detail {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  const char* name = std::strrchr(file, '/');
  throw InternalError(std::string(name ? name + 1 : file) + ":" + std::to_string(line) + ": " + message +
                      " (expected " + condition + "). This is a defect of tessera; please report it.");
}

}  // namespace tessera::detail
