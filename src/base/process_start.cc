#include "base/process_start.h"

#include <fcntl.h>
#include <signal.h>

#include "base/open_files.h"

namespace tessera {

void begin_process() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDWR);  // gets the lowest number that is free
  }
  ::signal(SIGCHLD, SIG_DFL);
  allow_all_open_files();
}

}  // namespace tessera
