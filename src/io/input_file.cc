#include "io/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/page_size.h"
#include "tessera/base/error.h"

namespace tessera::io {

InputFile::InputFile(const std::string& path) : path_(path), file_(path) {}

InputFile::~InputFile() {
  if (direct_ >= 0) ::close(direct_);
}

void InputFile::read(std::uint64_t offset, void* out, std::size_t bytes) const {
  constexpr std::size_t kMaxCall = std::size_t{1} << 30;  // Linux transfers at most 2 GiB a call
  // The kernel by itself asks for 128 KiB ahead, which keeps no disk busy: it is told of the whole range, and of as
  // much behind it, which this rank or its neighbour reads next.
  constexpr std::size_t kWorthTelling = std::size_t{256} << 10, kMaxAhead = std::size_t{16} << 20;
  if (bytes >= kWorthTelling) prefetch(offset, bytes + std::min(bytes, kMaxAhead));
  auto* to = static_cast<char*>(out);
  std::size_t done = 0;
  while (done < bytes) {
    const auto got =
        ::pread(file_.descriptor(), to + done, std::min(bytes - done, kMaxCall), static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw DataError(fmt::format("{}: cannot be read: {}", path_, std::strerror(errno)), path_);
    if (got == 0)
      throw DataError(
          fmt::format("{}: the file ends too early: expected {} bytes at byte {}, found {}. Is it truncated?", path_,
                      bytes, offset, done),
          path_);
    done += static_cast<std::size_t>(got);
  }
}

std::string InputFile::read_string(std::uint64_t offset, std::size_t bytes) const {
  if (offset > size_bytes() || bytes > size_bytes() - offset)
    throw DataError(fmt::format("{}: the file ends too early: expected {} bytes at byte {}, the file has {}", path_,
                                bytes, offset, size_bytes()),
                    path_);
  std::string out(bytes, '\0');
  read(offset, out.data(), bytes);
  return out;
}

int InputFile::direct() const {
  std::lock_guard lock(mutex_);
  if (direct_ == kNotOpened) direct_ = file_.open_again(O_DIRECT);
  return direct_;
}

bool InputFile::read_past_cache(std::uint64_t offset, std::byte* out, std::size_t bytes) const {
  const int descriptor = direct();
  if (descriptor < 0) return false;
  std::size_t done = 0;
  while (done < bytes && offset + done < size_bytes()) {
    const auto got = ::pread(descriptor, out + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EINVAL) return false;
    if (got < 0) throw DataError(fmt::format("{}: cannot be read: {}", path_, std::strerror(errno)), path_);
    done += static_cast<std::size_t>(got);
    if (got == 0 || done % kBlockBytes != 0) break;  // the end of the file
  }
  const std::uint64_t expected = std::min<std::uint64_t>(bytes, size_bytes() - std::min(size_bytes(), offset));
  if (done < expected)
    throw DataError(fmt::format("{}: the file ends too early: expected {} bytes at byte {}, found {}. Is it truncated?",
                                path_, expected, offset, done),
                    path_);
  return true;
}

bool InputFile::is_cached(std::uint64_t offset, std::size_t bytes) const {
  constexpr std::uint64_t kApart = std::uint64_t{128} << 10;  // what the kernel reads at once: neighbours come together
  const std::uint64_t page = page_bytes();
  const std::uint64_t begin = offset / page * page, end = std::min(size_bytes(), offset + bytes);
  std::size_t asked = 0, resident = 0;
  const std::byte* mapping = map().get();
  for (std::uint64_t at = begin; at < end; at += kApart, ++asked) {
    unsigned char state = 0;
    if (::mincore(const_cast<std::byte*>(mapping) + at, 1, &state) != 0) return true;
    resident += state & 1;
  }
  return 2 * resident >= asked;
}

void InputFile::prefetch(std::uint64_t offset, std::size_t bytes) const {
  ::posix_fadvise(file_.descriptor(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

std::shared_ptr<std::byte> InputFile::map() const {
  std::lock_guard lock(mutex_);
  if (mapping_ || size_bytes() == 0) return mapping_;
  const auto bytes = static_cast<std::size_t>(size_bytes());
  // NORESERVE: private writable mappings would otherwise count against the commit limit, though nobody writes.
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file_.descriptor(), 0);
  if (at == MAP_FAILED) throw DataError(fmt::format("{}: cannot be mapped: {}", path_, std::strerror(errno)), path_);
  mapping_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(at), [bytes](std::byte* p) { ::munmap(p, bytes); });
  return mapping_;
}

}  // namespace tessera::io
