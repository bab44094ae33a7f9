#include "base/temporary_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <mutex>
#include <utility>

#include "base/folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void remove_orphans(const std::string& path) {
  const std::string start = fs::path(path).filename().string() + ".tmp.";
  std::error_code code;
  for (fs::directory_iterator entry(parent_folder(path), code), end; !code && entry != end; entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(start) || name.find_first_not_of("0123456789.", start.size()) != std::string::npos) continue;
    const Descriptor orphan(::open(entry->path().c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (orphan.get() >= 0 && ::flock(orphan.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
  }
}

/// False where somebody took it for an orphan before it was held. Where the disk knows no locks nobody takes any.
bool hold(int descriptor) {
  while (::flock(descriptor, LOCK_EX) != 0 && errno == EINTR) continue;
  struct stat about{};
  return ::fstat(descriptor, &about) != 0 || about.st_nlink > 0;
}

// What a handler of signals may read: the names of the last files. One that was renamed since is there no more under
// its name, which no other file gets.
constexpr std::size_t kRemembered = 64;
struct Name {
  std::atomic<bool> whole{false};
  std::array<char, 4096> text;
};
std::array<Name, kRemembered> remembered;
std::atomic<pid_t> owner{0};

void remember(const std::string& path, unsigned number) {
  Name& name = remembered[number % kRemembered];
  name.whole = false;
  if (path.size() >= name.text.size()) return;
  std::copy_n(path.c_str(), path.size() + 1, name.text.begin());
  name.whole = true;
}

void remove_and_end(int signal) {
  if (owner == ::getpid())
    for (Name& name : remembered)
      if (name.whole) ::unlink(name.text.data());
  ::raise(signal);  // its default action, when this handler returns
}

/// Signals that would end the process remove its files before; those that somebody handles or ignores stay as they are.
void remove_when_ended() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (owner.exchange(::getpid()) == ::getpid()) return;
  for (Name& name : remembered) name.whole = false;  // of the process that this one was forked from
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now{};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_DFL) continue;
    now = {};
    now.sa_handler = remove_and_end;
    now.sa_flags = SA_RESETHAND;
    ::sigaction(signal, &now, nullptr);
  }
}

}  // namespace

TemporaryFile open_temporary(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  remove_when_ended();
  remove_orphans(path);
  for (;;) {  // unique among threads, and hosts that share the folder's disk closely enough: O_EXCL settles the rest
    const unsigned number = counter.fetch_add(1);
    TemporaryFile out{fmt::format("{}.tmp.{}.{}", path, ::getpid(), number), Descriptor()};
    remember(out.name, number);
    out.descriptor.reset(::open(out.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    const int error = errno;
    if (out.descriptor.get() >= 0 && !hold(out.descriptor.get())) continue;
    if (out.descriptor.get() < 0 && error == EEXIST) continue;
    errno = error;
    return out;
  }
}

}  // namespace tessera
