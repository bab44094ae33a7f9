#pragma once
// The folders checkpoint-N of an output folder. One is written under a hidden name, gets its manifest and is renamed
// when everything in it is on disk; so what is called checkpoint-N is whole, and a run that is killed leaves at most a
// hidden folder that the next save removes; where the disk cannot exchange two names (NFS), a kill between two renames
// may also hide the one that was being replaced. What happens to a folder later (a copy that was cut, a bad disk) its
// manifest shows.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace tessera::checkpoint {

struct Checkpoint {
  std::int64_t step = 0;
  std::string path;
};

/// By step, oldest first.
std::vector<Checkpoint> list_checkpoints(const std::string& output_dir);

/// The newest one that `restore` takes: it returns what keeps the run from going on from a folder (restore.h), empty:
/// nothing, and is as collective as this. `skipped` says why newer ones are left out, and of torn saves.
std::optional<Checkpoint> last_checkpoint(const std::string& output_dir,
                                          const std::function<std::string(const std::string& folder)>& restore,
                                          std::vector<std::string>& skipped);

/// Where checkpoint-<step> is written before it gets its name.
std::string partial_folder(const std::string& output_dir, std::int64_t step);

/// On one rank: removes what an interrupted save has left, for every step. What cannot be removed is a warning, here
/// and below.
void remove_partial_folders(const std::string& output_dir);

/// On one rank, when all have written: writes the manifest (`known`: see write_manifest()), flushes the folder and
/// gives it its name (replacing an older one of that step). Returns the path. CheckpointError names the folder.
std::string commit_checkpoint(const std::string& output_dir, std::int64_t step, int world_size,
                              const std::vector<FileRecord>& known = {});

/// On one rank: removes those above `limit` that were written first, whatever their steps (another run may have left
/// higher ones; so does Trainer), but none of `kept`.
void rotate_checkpoints(const std::string& output_dir, std::int64_t limit, const std::vector<std::string>& kept);

}  // namespace tessera::checkpoint
