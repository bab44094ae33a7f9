#pragma once

namespace tessera {

/// The first call of a program: repairs what whoever started it may have left otherwise.
///  - Of stdin, stdout and stderr those that are closed become /dev/null; else the next file that is opened would be
///  one
///    of them, and what is printed would go into it.
///  - Ends of children are told (SIGCHLD is not ignored).
void begin_process();

}  // namespace tessera
