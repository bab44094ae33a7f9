#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/folder_names.h"
#include "tessera/base/error.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kPartialPrefix = ".partial-checkpoint-";
constexpr std::string_view kRemovedPrefix = ".removed-checkpoint-";

std::vector<Checkpoint> folders(const std::string& output_dir, std::string_view prefix) {
  std::vector<Checkpoint> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(output_dir, code)) {
    const auto step = checkpoint_step(entry.path().filename().string(), prefix);
    if (step >= 0 && entry.is_directory()) found.push_back({step, entry.path().string()});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

void flush(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const bool ok = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!ok) throw CheckpointError("cannot flush '" + path + "' to disk: " + std::strerror(error), path);
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
  for (const auto prefix : {kPartialPrefix, kRemovedPrefix})
    for (const auto& folder : folders(output_dir, prefix)) fs::remove_all(folder.path);
}

std::string commit_checkpoint(const std::string& output_dir, std::int64_t step, int world_size,
                              const std::vector<FileRecord>& known) {
  const std::string partial = partial_folder(output_dir, step);
  write_manifest(partial, step, world_size, known);
  const std::string path = output_dir + "/" + std::string(kCheckpointPrefix) + std::to_string(step);
  for (const auto& entry : fs::recursive_directory_iterator(partial)) flush(entry.path().string());
  flush(partial);
  const bool replaces = fs::exists(path);  // then the old one takes the hidden name, in one step
  if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, path.c_str(), replaces ? RENAME_EXCHANGE : 0) != 0) {
    throw CheckpointError("cannot give '" + path + "' its name: " + std::strerror(errno), path);
  }
  flush(output_dir);
  remove_partial_folders(output_dir);
  return path;
}

void rotate_checkpoints(const std::string& output_dir, std::int64_t limit, const std::string& keep) {
  auto all = list_checkpoints(output_dir);
  std::int64_t surplus = static_cast<std::int64_t>(all.size()) - std::max<std::int64_t>(1, limit);
  for (std::size_t i = 0; i + 1 < all.size() && surplus > 0; ++i) {
    std::error_code code;
    if (!keep.empty() && fs::equivalent(all[i].path, keep, code)) continue;
    // It loses its name first: a kill among its files would leave a checkpoint-N that is damaged.
    const std::string removed = output_dir + "/" + std::string(kRemovedPrefix) + std::to_string(all[i].step);
    fs::rename(all[i].path, removed);
    fs::remove_all(removed);
    --surplus;
  }
}

}  // namespace tessera::checkpoint
