#pragma once

namespace tessera {

/// Raises this process's limit of open files (ulimit -n) to what the system lets it have (ulimit -Hn): ranks have
/// connections with each other, launchers pipes from each rank, and strangers who call may hold some for a while.
void allow_all_open_files();

/// Puts back what allow_all_open_files() found, for a user's program that this process becomes: select() takes no
/// descriptor above 1023. Async-signal-safe.
void restore_open_files();

}  // namespace tessera
