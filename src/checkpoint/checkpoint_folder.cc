#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/folder.h"
#include "base/folder_names.h"
#include "base/log.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPartialPrefix = ".partial-checkpoint-";
constexpr std::string_view kRemovedPrefix = ".removed-checkpoint-";

std::vector<Checkpoint> folders(const std::string& output_dir, std::string_view prefix) {
  std::vector<Checkpoint> found;
  std::error_code code, none;
  for (fs::directory_iterator entry(output_dir, code), end; !code && entry != end; entry.increment(code)) {
    const auto step = checkpoint_step(entry->path().filename().string(), prefix);
    if (step >= 0 && entry->is_directory(none)) found.push_back({step, entry->path().string()});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

void flush_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const bool ok = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!ok) throw CheckpointError("cannot flush '" + path + "' to disk: " + std::strerror(error), path);
}

/// A hidden name that is free; its number is the step, or one behind it.
std::string removed_folder(const std::string& output_dir, std::int64_t step) {
  std::error_code none;
  for (;; ++step) {
    std::string path = output_dir + "/" + std::string(kRemovedPrefix) + std::to_string(step);
    if (!fs::exists(fs::symlink_status(path, none))) return path;
  }
}

/// What the disk does not give up (NFS while somebody has a file open, a mount) is left to the next save.
void remove_folder(const std::string& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code)
    log_warning("cannot remove '" + path + "': " + code.message() +
                "; the next save tries again, or remove it yourself");
}

/// It loses its name first: a kill among its files would leave a checkpoint-N that is damaged.
void discard(const std::string& output_dir, const Checkpoint& folder) {
  const std::string removed = removed_folder(output_dir, folder.step);
  std::error_code code;
  fs::rename(folder.path, removed, code);
  if (code)
    log_warning("cannot rename '" + folder.path + "' to remove it: " + code.message());
  else
    remove_folder(removed);
}

bool renamed(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0;
}

/// Exchanges two names: in one step, or in three where the file system has none for it (NFS, FUSE). False: errno says
/// why.
bool exchange(const std::string& one, const std::string& other, const std::string& spare) {
  if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0) return true;
  if ((errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) || !renamed(other, spare)) return false;
  if (renamed(one, other)) return renamed(spare, one), true;
  const int error = errno;
  renamed(spare, other);
  errno = error;
  return false;
}

}  // namespace

std::vector<Checkpoint> list_checkpoints(const std::string& output_dir) {
  return folders(output_dir, kCheckpointPrefix);
}

std::optional<Checkpoint> last_checkpoint(const std::string& output_dir,
                                          const std::function<std::string(const std::string& folder)>& restore,
                                          std::vector<std::string>& skipped) {
  for (const auto& torn : folders(output_dir, kPartialPrefix))
    skipped.push_back("'" + torn.path + "' was not written to its end; it is left out");
  const auto all = list_checkpoints(output_dir);
  for (auto c = all.rbegin(); c != all.rend(); ++c) {
    const std::string obstacle = restore(c->path);
    if (obstacle.empty()) return *c;
    skipped.push_back("'" + c->path + "' is left out: " + obstacle);
  }
  return std::nullopt;
}

std::string partial_folder(const std::string& output_dir, std::int64_t step) {
  return output_dir + "/" + std::string(kPartialPrefix) + std::to_string(step);
}

void remove_partial_folders(const std::string& output_dir) {
  for (const auto& folder : folders(output_dir, kRemovedPrefix)) remove_folder(folder.path);
  for (const auto& folder : folders(output_dir, kPartialPrefix)) discard(output_dir, folder);
}

std::string commit_checkpoint(const std::string& output_dir, std::int64_t step, int world_size,
                              const std::vector<FileRecord>& known) {
  const std::string partial = partial_folder(output_dir, step);
  write_manifest(partial, step, world_size, known);
  const std::string path = output_dir + "/" + std::string(kCheckpointPrefix) + std::to_string(step);
  for (const auto& entry : fs::recursive_directory_iterator(partial))
    entry.is_directory() ? flush_folder(entry.path().string()) : flush_file(entry.path().string());
  flush_folder(partial);
  const bool replaces = fs::exists(path);  // then the old one takes the hidden name
  if (!(replaces ? exchange(partial, path, removed_folder(output_dir, step)) : renamed(partial, path)))
    throw CheckpointError("cannot give '" + path + "' its name: " + std::strerror(errno), path);
  flush_folder(output_dir);
  if (replaces) discard(output_dir, {step, partial});
  return path;
}

void rotate_checkpoints(const std::string& output_dir, std::int64_t limit, const std::vector<std::string>& kept) {
  std::error_code none;
  std::multimap<fs::file_time_type, Checkpoint> all;  // of one time in the order of their steps
  for (auto& c : list_checkpoints(output_dir)) all.emplace(fs::last_write_time(c.path, none), c);
  auto surplus = static_cast<std::int64_t>(all.size()) - std::max<std::int64_t>(1, limit);
  for (const auto& [written, checkpoint] : all) {
    const auto is_it = [&](const std::string& path) { return fs::equivalent(checkpoint.path, path, none); };
    if (surplus <= 0 || std::any_of(kept.begin(), kept.end(), is_it)) continue;
    discard(output_dir, checkpoint);
    --surplus;
  }
}

}  // namespace tessera::checkpoint
