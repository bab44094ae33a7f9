#include "base/rank_record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/folder_names.h"
#include "base/open_file.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "tessera-ranks";
constexpr char kMark[16] = "tessera ranks 1";  // another number for another form

}  // namespace

void Note::set(std::string_view text) {
  for (std::size_t i = 0; i < kWords; ++i) {
    std::uint64_t word = 0;
    const std::size_t begin = std::min(text.size(), i * sizeof(word));
    const std::size_t limit = i + 1 == kWords ? sizeof(word) - 1 : sizeof(word);  // the last byte stays zero
    std::memcpy(&word, text.data() + begin, std::min(text.size() - begin, limit));
    words_[i].store(word, std::memory_order_relaxed);
    if (begin + sizeof(word) > text.size()) return;
  }
}

std::string Note::get() const {
  std::string text(kWords * sizeof(std::uint64_t), '\0');
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::uint64_t word = words_[i].load(std::memory_order_relaxed);
    std::memcpy(text.data() + i * sizeof(word), &word, sizeof(word));
  }
  return text.substr(0, text.find('\0'));
}

std::int64_t steady_nanoseconds() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

void RankRecord::set_activity(std::string_view what) {
  activity.set(what);
  activity_since.store(steady_nanoseconds(), std::memory_order_relaxed);
}

std::string RankRecord::where() const {
  std::string what = activity.get();
  if (what.empty()) return what;
  if (const auto now = step.load(); now > 0) what += ", step " + std::to_string(now);
  if (const std::string at = rows.get(); !at.empty()) what += ", " + at;
  return " (in " + what + ")";
}

void RankRecord::begin_step(std::int64_t number, std::int64_t total) {
  step.store(number, std::memory_order_relaxed);
  total_steps.store(total, std::memory_order_relaxed);
  step_since.store(steady_nanoseconds(), std::memory_order_relaxed);
}

void RankRecord::end_step() {
  last_step.store(steady_nanoseconds() - step_since.load(), std::memory_order_relaxed);
}

std::uint64_t folder_mark(const std::string& folder) {
  std::error_code code;
  fs::path path = fs::weakly_canonical(fs::absolute(folder, code), code);
  if (code) path = fs::absolute(folder, code).lexically_normal();
  const std::string text = without_end_slashes(path.string());
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash | 1;  // 0: none
}

RankRecords::RankRecords(int first_rank, int ranks, int world_size) {
  descriptor_ = ::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const std::size_t bytes = kHeadBytes + sizeof(RankRecord) * static_cast<std::size_t>(ranks);
  if (descriptor_ < 0 || ::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0 || !map(bytes, false))
    throw std::system_error(errno, std::generic_category(), "memfd");
  ::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  auto& head = *static_cast<Head*>(memory_);
  std::memcpy(head.mark, kMark, sizeof kMark);
  head.first_rank = first_rank;
  head.ranks = ranks;
  head.world_size = world_size;
}

bool RankRecords::map(std::size_t bytes, bool read_only) {
  void* memory = ::mmap(nullptr, bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) return false;
  memory_ = memory;
  bytes_ = bytes;
  return true;
}

std::unique_ptr<RankRecords> RankRecords::adopt(int descriptor, bool read_only) {
  std::unique_ptr<RankRecords> records(new RankRecords);
  records->descriptor_ = descriptor;
  struct stat info{};
  if (::fstat(descriptor, &info) != 0 || info.st_size < static_cast<off_t>(kHeadBytes)) return nullptr;
  const auto bytes = static_cast<std::size_t>(info.st_size);
  if (!records->map(bytes, read_only) || std::memcmp(records->head().mark, kMark, sizeof kMark) != 0) return nullptr;
  const std::int32_t ranks = records->head().ranks;
  if (ranks < 1 || static_cast<std::size_t>(ranks) > (bytes - kHeadBytes) / sizeof(RankRecord)) return nullptr;
  return records;
}

std::vector<std::unique_ptr<RankRecords>> RankRecords::of_process(const std::string& process) {
  std::vector<std::pair<int, std::string>> found;
  const std::string folder = "/proc/" + process + "/fd", wanted = std::string("/memfd:") + kName;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry->path(), gone).string();
    if (!gone && target.starts_with(wanted)) found.emplace_back(std::stoi(entry->path().filename()), entry->path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::unique_ptr<RankRecords>> out;
  for (const auto& [number, path] : found) {
    try {
      const OpenFile file(path);
      if (auto records = adopt(::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0), /*read_only=*/true))
        out.push_back(std::move(records));
    } catch (const DataError&) {  // it has just ended
    }
  }
  return out;
}

RankRecords::~RankRecords() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace tessera
