#pragma once

namespace tessera {

/// The first call of a program: repairs what its starter may have left in another state.
///  - Standard streams that are closed become /dev/null. Else the next file that is opened would get the number of one,
///    and what is printed would go into that file.
///  - SIGCHLD is not ignored, so that the ends of children are told.
///  - As many files may be open as the system allows (base/open_files.h).
void begin_process();

}  // namespace tessera
