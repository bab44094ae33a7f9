#include "launch/gpus.h"

#include <sys/stat.h>

namespace tessera::launch {

bool has_gpu() {
  struct stat info{};
  return ::stat("/dev/nvidiactl", &info) == 0 || ::stat("/dev/dxg", &info) == 0;
}

}  // namespace tessera::launch
