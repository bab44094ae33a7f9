#include "hub/download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/descriptor.h"
#include "hub/digest.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

/// blobs/<etag>.incomplete, at whose end bytes arrive.
class Incomplete {
 public:
  Incomplete(std::string path, const RemoteFile& file, const Count& count)
      : path_(std::move(path)), file_(file), count_(count), digest_(file.etag, file.size_bytes) {
    make_folder_of(path_);
    descriptor_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (descriptor_.get() < 0) fail();
    take_over();
  }

  std::int64_t size() const { return size_; }
  bool is_whole() const { return size_ == file_.size_bytes; }

  void append(std::string_view bytes) {
    if (size_ + static_cast<std::int64_t>(bytes.size()) > file_.size_bytes) {
      remove();
      throw DataError(fmt::format("'{}': more bytes than the {} that were announced", file_.path, file_.size_bytes));
    }
    digest_.update(bytes);
    for (std::string_view rest = bytes; !rest.empty();) {
      const ssize_t n = ::pwrite(descriptor_.get(), rest.data(), rest.size(), size_);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail();
      rest.remove_prefix(static_cast<std::size_t>(n));
      size_ += n;
    }
    count_(static_cast<std::int64_t>(bytes.size()));
  }

  void start_over() {
    if (size_ == 0) return;
    count_(-size_);
    size_ = 0;
    digest_ = Digest(file_.etag, file_.size_bytes);
    if (::ftruncate(descriptor_.get(), 0) != 0) fail();
  }

  void become(const std::string& blob) {
    if (const std::string wrong = digest_.disagreement(); !wrong.empty()) {
      remove();
      throw DataError(
          fmt::format("'{}' did not arrive as it was announced: {}. What came was removed; start again, and "
                      "ask who keeps the server or proxy if that does not help",
                      file_.path, wrong),
          path_);
    }
    if (::fsync(descriptor_.get()) != 0 || ::rename(path_.c_str(), blob.c_str()) != 0) fail();
  }

 private:
  /// What an earlier download has left.
  void take_over() {
    struct stat info{};
    if (::fstat(descriptor_.get(), &info) != 0) fail();
    if (info.st_size > file_.size_bytes && ::ftruncate(descriptor_.get(), 0) != 0) fail();
    if (info.st_size > file_.size_bytes) return;
    std::vector<char> piece(1 << 20);
    while (size_ < info.st_size) {
      const ssize_t n = ::pread(descriptor_.get(), piece.data(), piece.size(), size_);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail();
      if (n == 0) break;  // it shrank
      digest_.update({piece.data(), static_cast<std::size_t>(n)});
      size_ += n;
    }
    count_(size_);
  }

  void remove() {
    count_(-size_);
    std::error_code code;
    fs::remove(path_, code);
  }

  [[noreturn]] void fail() const {
    throw CheckpointError(
        fmt::format("cannot write '{}': {}. What came stays there, and the next download goes on from "
                    "it; HF_HUB_CACHE or HF_HOME names a cache on another disk",
                    path_, std::strerror(errno)),
        path_);
  }

  std::string path_;
  const RemoteFile& file_;
  const Count& count_;
  Digest digest_;
  Descriptor descriptor_;
  std::int64_t size_ = 0;
};

/// A part may only follow what is here.
bool continues(const Response& head, std::int64_t size) {
  return head.status == 206 && head.header("content-range").starts_with(fmt::format("bytes {}-", size));
}

void receive(Client& client, const Place& place, const RemoteFile& file, Incomplete& incomplete) {
  const std::int64_t begin = incomplete.size();
  bool is_first = true;
  client.download(place.name, place.commit, file.path, begin, [&](const Response& head, std::string_view piece) {
    if (is_first && !continues(head, begin)) {
      if (head.status == 206) throw DataError(fmt::format("'{}': another part than was asked for", file.path));
      incomplete.start_over();
    }
    is_first = false;
    incomplete.append(piece);
  });
  if (!incomplete.is_whole())
    throw Unavailable(fmt::format("'{}': {} of {} bytes came", file.path, incomplete.size(), file.size_bytes));
}

void receive_all(Client& client, const Place& place, const RemoteFile& file, Incomplete& incomplete) {
  for (Tries tries(client.settings()); !incomplete.is_whole();) {
    const std::int64_t before = incomplete.size();
    try {
      receive(client, place, file, incomplete);
    } catch (const Unavailable& failure) {
      if (incomplete.size() > before) tries.reset();
      tries.wait_after(failure);
    }
  }
}

}  // namespace

void download_file(Client& client, const Place& place, const RemoteFile& file, const Count& count) {
  const std::string blob = place.cache.blob(file.etag);
  const FileLock lock(place.cache.blob_lock(file.etag), "'" + file.path + "'");
  std::error_code code;
  if (fs::is_regular_file(blob, code)) {
    count(file.size_bytes);
  } else {
    Incomplete incomplete(blob + ".incomplete", file, count);
    receive_all(client, place, file, incomplete);
    incomplete.become(blob);
  }
  place.cache.link(place.commit, file.path, file.etag);
}

}  // namespace tessera::hub
