#include "hub/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot(const std::string& what, const std::string& path, const std::string& reason) {
  throw CheckpointError(
      fmt::format("cannot {} '{}': {}. HF_HUB_CACHE or HF_HOME names another cache", what, path, reason), path);
}

/// "models--org--name"
std::string folder_name(const RepositoryName& name) {
  std::string id = name.id;
  if (const auto slash = id.find('/'); slash != std::string::npos) id.replace(slash, 1, "--");
  return (name.kind == Kind::kDataset ? "datasets--" : "models--") + id;
}

}  // namespace

void make_folder_of(const std::string& file) {
  const fs::path folder = fs::path(file).parent_path();
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) cannot("create", folder.string(), code.message());
}

FileLock::FileLock(const std::string& path, const std::string& waiting_for) {
  std::error_code code;
  fs::create_directories(fs::path(path).parent_path(), code);
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0 && (errno == EACCES || errno == EROFS || errno == ENOENT)) return;
  if (descriptor_ < 0) cannot("lock", path, std::strerror(errno));
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  log_info("waiting for another process, which downloads " + waiting_for);
  while (::flock(descriptor_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    const int error = errno;
    ::close(descriptor_);
    cannot("lock", path, std::strerror(error));
  }
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Cache::Cache(const std::string& root, const RepositoryName& name)
    : revision_(name.revision),
      folder_(root + "/" + folder_name(name)),
      locks_(root + "/.locks/" + folder_name(name)) {}

std::optional<std::string> Cache::commit() const {
  std::error_code code;
  if (is_commit(revision_))
    return fs::is_directory(snapshot(revision_), code) ? std::optional(revision_) : std::nullopt;
  if (!fs::is_regular_file(ref(), code)) return std::nullopt;
  std::string commit = read_file(ref());
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
  const bool is_here = is_commit(commit) && fs::is_directory(snapshot(commit), code);
  return is_here ? std::optional(commit) : std::nullopt;
}

bool Cache::is_noted(const std::string& commit, const std::vector<std::string>& absent) const {
  std::error_code code;
  return this->commit() == commit && std::all_of(absent.begin(), absent.end(), [&](const auto& file) {
           return fs::exists(no_exist(commit, file), code);
         });
}

void Cache::note(const std::string& commit, const std::vector<std::string>& absent) const {
  const auto write = [](const std::string& path, const std::string& bytes) {
    make_folder_of(path);
    write_file_atomically(path, bytes);
  };
  if (revision_ != commit && this->commit() != commit) write(ref(), commit);
  std::error_code code;
  for (const auto& file : absent)
    if (!fs::exists(no_exist(commit, file), code)) write(no_exist(commit, file), "");
}

std::vector<std::string> Cache::files(const std::string& commit) const {
  std::vector<std::string> out;
  const fs::path root = snapshot(commit);
  std::error_code code;
  for (const auto& entry : fs::recursive_directory_iterator(root, code))
    if (entry.is_regular_file(code)) out.push_back(entry.path().lexically_relative(root).string());
  std::sort(out.begin(), out.end());
  return out;
}

bool Cache::has(const std::string& commit, const std::string& file) const {
  std::error_code code;
  return fs::is_regular_file(snapshot(commit) + "/" + file, code);
}

void Cache::link(const std::string& commit, const std::string& file, const std::string& etag) const {
  const std::string path = snapshot(commit) + "/" + file, temporary = fmt::format("{}.{}.link", path, ::getpid());
  make_folder_of(path);
  const auto target = fs::path(blob(etag)).lexically_relative(fs::path(path).parent_path());
  std::error_code code;
  fs::remove(temporary, code);
  fs::create_symlink(target, temporary, code);
  const bool has_no_links = code == std::errc::operation_not_permitted || code == std::errc::operation_not_supported ||
                            code == std::errc::function_not_supported;
  if (code && !has_no_links) cannot("make the link", path, code.message());
  fs::rename(has_no_links ? blob(etag) : temporary, path, code);
  if (code) cannot(has_no_links ? "move the download to" : "make the link", path, code.message());
}

}  // namespace tessera::hub
