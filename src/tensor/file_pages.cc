#include "tensor/file_pages.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "base/page_size.h"
#include "tessera/base/error.h"

namespace tessera::tensor {
namespace {

struct Mapping {
  std::uintptr_t begin, end;
  std::uint64_t offset, inode;
  std::string path;
};

/// The kernel writes a new line in a name as \012.
std::string unescaped(std::string path) {
  for (std::size_t at = 0; (at = path.find("\\012", at)) != std::string::npos; ++at) path.replace(at, 4, "\n");
  return path;
}

/// Those of files that have names. Advice for a part of one makes it several lines of /proc/self/maps, which are one
/// here.
std::vector<Mapping> file_mappings() {
  std::vector<Mapping> out;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Mapping m{};
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx %*s %lu", &m.begin, &m.end, &m.offset, &m.inode) != 4) continue;
    const auto path = line.find('/');
    if (m.inode == 0 || path == std::string::npos) continue;
    m.path = unescaped(line.substr(path));
    if (!out.empty() && out.back().end == m.begin && out.back().inode == m.inode &&
        out.back().offset + (m.begin - out.back().begin) == m.offset)
      out.back().end = m.end;
    else
      out.push_back(std::move(m));
  }
  return out;
}

FilePages::Range pages_of(const at::Tensor& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.const_data_ptr());
  const auto page = page_bytes();
  return {address / page * page, (address + view.nbytes() + page - 1) / page * page};
}

/// In order, those that touch in one.
std::vector<FilePages::Range> joined(std::vector<FilePages::Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<FilePages::Range> out;
  for (const auto& r : ranges) {
    if (!out.empty() && r.begin <= out.back().end)
      out.back().end = std::max(out.back().end, r.end);
    else
      out.push_back(r);
  }
  return out;
}

void advise(const std::vector<FilePages::Range>& ranges, int advice) {
  for (const auto& r : ranges) ::madvise(reinterpret_cast<void*>(r.begin), r.end - r.begin, advice);
}

}  // namespace

/// What the handler of SIGBUS looks through: a list that only grows.
struct FilePages::Guard {
  std::atomic<std::uintptr_t> begin{0}, end{0};  // equal: nobody's
  std::atomic<std::uintptr_t> lost{0};           // the first address that could not be read
  Guard* next = nullptr;

  static std::atomic<Guard*> first;
  static std::atomic<bool> any_lost;
  static struct sigaction before;
  static std::mutex mutex;  // of whoever adds or removes one

  static Guard* add(const Range& range);
  static void remove(Guard* guard);
  static void on_bus_error(int, siginfo_t* info, void*);
};

std::atomic<FilePages::Guard*> FilePages::Guard::first{nullptr};
std::atomic<bool> FilePages::Guard::any_lost{false};
struct sigaction FilePages::Guard::before{};
std::mutex FilePages::Guard::mutex;

FilePages::Guard* FilePages::Guard::add(const Range& range) {
  const std::lock_guard lock(mutex);
  if (!first.load()) {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigaction(SIGBUS, &action, &before);
  }
  Guard* guard = first.load();
  while (guard && guard->begin != guard->end) guard = guard->next;
  if (!guard) {
    guard = new Guard;
    guard->next = first.load();
    first = guard;
  }
  guard->lost = 0;
  guard->end = range.end;
  guard->begin = range.begin;
  return guard;
}

void FilePages::Guard::remove(Guard* guard) {
  const std::lock_guard lock(mutex);
  guard->begin = guard->end.load();
}

// Several models may guard the same mapping: each is to know. What is nobody's has whatever fate it had before, when
// the access is repeated.
void FilePages::Guard::on_bus_error(int, siginfo_t* info, void*) {
  const int saved = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr), page = address / page_bytes() * page_bytes();
  std::uintptr_t lost_to = 0;
  for (Guard* g = first.load(); g; g = g->next) {
    const auto begin = g->begin.load(), end = g->end.load();
    if (address < begin || address >= end) continue;
    std::uintptr_t none = 0;
    g->lost.compare_exchange_strong(none, address);
    lost_to = std::max(lost_to, end);
  }
  constexpr int kZeros = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (lost_to == 0 ||
      ::mmap(reinterpret_cast<void*>(page), lost_to - page, PROT_READ | PROT_WRITE, kZeros, -1, 0) == MAP_FAILED)
    ::sigaction(SIGBUS, &before, nullptr);
  else
    any_lost = true;
  errno = saved;
}

struct FilePages::File {
  std::string path;
  std::uint64_t inode;
  std::int64_t size;
  timespec written;
  std::uintptr_t begin, end;  // of a part of its mapping
  std::uint64_t offset;       // of that in the file

  /// Nothing where another file has the name by now, or none.
  std::optional<struct stat> now() const {
    struct stat about{};
    if (::stat(path.c_str(), &about) != 0 || about.st_ino != inode) return std::nullopt;
    return about;
  }
};

FilePages::FilePages(const std::vector<at::Tensor>& views, FileUse use) : use_(std::move(use)) {
  if (views.empty()) return;
  const auto mappings = file_mappings();
  for (const auto& view : views) {
    if (view.nbytes() == 0) continue;
    const auto range = pages_of(view);
    const auto found = std::find_if(mappings.begin(), mappings.end(),
                                    [&](const auto& m) { return m.begin <= range.begin && range.end <= m.end; });
    if (found == mappings.end()) continue;
    views_.push_back(view);
    ranges_.push_back(range);
    if (std::any_of(files_.begin(), files_.end(), [&](const auto& f) { return f.begin == found->begin; })) continue;
    File file{found->path, found->inode, 0, {}, found->begin, found->end, found->offset};
    if (const auto about = file.now()) file.size = about->st_size, file.written = about->st_mtim;
    files_.push_back(std::move(file));
  }
  ranges_ = joined(std::move(ranges_));
  for (const auto& range : ranges_) guards_.push_back(Guard::add(range));
}

FilePages::FilePages(const WholeFile& file, FileUse use) : use_(std::move(use)), bytes_(file.bytes) {
  struct stat about{};
  if (file.size == 0 || ::fstat(file.descriptor, &about) != 0) return;
  const auto page = page_bytes(), begin = reinterpret_cast<std::uintptr_t>(bytes_.get());
  ranges_ = {{begin, (begin + file.size + page - 1) / page * page}};
  files_.push_back({std::filesystem::absolute(file.path).string(), about.st_ino, about.st_size, about.st_mtim, begin,
                    ranges_[0].end, 0});
  guards_.push_back(Guard::add(ranges_[0]));
}

FilePages::~FilePages() {
  for (auto* guard : guards_) Guard::remove(guard);
}

// In huge pages a request to the disk is as long as they are, and the kernel has a five-hundredth of the pages to find,
// fill and map. Read in sequence, pages do not count as worth keeping for having been read twice (by two ranks), so
// those that were read last, and are next when a pass turns, stay longest, and none goes before it is used.
void FilePages::expect_passes() const {
  advise(ranges_, MADV_HUGEPAGE);
  advise(ranges_, MADV_SEQUENTIAL);
}

void FilePages::drop() const {
  advise(ranges_, MADV_DONTNEED);
}

void FilePages::drop(const std::byte* begin, const std::byte* end) const {
  const auto page = page_bytes();
  const Range whole{(reinterpret_cast<std::uintptr_t>(begin) + page - 1) / page * page,
                    reinterpret_cast<std::uintptr_t>(end) / page * page};
  if (whole.begin < whole.end) advise({whole}, MADV_DONTNEED);
}

void FilePages::check() const {
  if (!Guard::any_lost.load(std::memory_order_relaxed)) return;
  for (const auto* guard : guards_) {
    const auto lost = guard->lost.load();
    if (lost == 0) continue;
    for (const auto& f : files_) {
      if (lost < f.begin || lost >= f.end) continue;
      const auto now = f.now();
      const auto at = f.offset + (lost - f.begin);
      const bool cut = now && static_cast<std::uint64_t>(now->st_size) <= at / page_bytes() * page_bytes();
      throw DataError(fmt::format("{}: cannot be read at byte {}, and was {}: {}. {}", f.path, at, use_.opened,
                                  cut ? fmt::format("it had {} bytes then and has {} now", f.size, now->st_size)
                                      : "the disk reports an error (the kernel's log says more)",
                                  use_.if_lost),
                      f.path);
    }
  }
}

void FilePages::check_unchanged() const {
  for (const auto& f : files_) {
    const auto now = f.now();
    if (!now || (now->st_size == f.size && now->st_mtim.tv_sec == f.written.tv_sec &&
                 now->st_mtim.tv_nsec == f.written.tv_nsec))
      continue;
    throw DataError(fmt::format("{}: was written to during the run: it had {} bytes {}, and has {} now. {}", f.path,
                                f.size, use_.opened, now->st_size, use_.if_written),
                    f.path);
  }
}

}  // namespace tessera::tensor
