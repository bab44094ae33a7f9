#pragma once
// Folders that files are written into.
#include <string>

namespace tessera {

/// "." where the path names none.
std::string parent_folder(const std::string& path);

/// A rename is durable only once its folder is. Disks that cannot flush a folder keep their own promise.
/// CheckpointError when the disk reports an error.
void flush_folder(const std::string& folder);

}  // namespace tessera
