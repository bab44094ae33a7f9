#include "io/zip_archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/crc32.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

// Signatures and sizes of fixed parts: APPNOTE.TXT of PKWARE, 4.3.
constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                        kLocator = 0x07064b50;
constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr std::size_t kMaxComment = 0xFFFF;
constexpr std::uint64_t kMaxDirectoryBytes = 1u << 30;

[[noreturn]] void fail(const InputFile& file, const std::string& what) {
  throw DataError(fmt::format("{}: not a zip file as torch.save writes it, or damaged: {}", file.path(), what),
                  file.path());
}

template <class T>
T number(std::string_view bytes, std::size_t at) {
  T out{};
  std::memcpy(&out, bytes.data() + at, sizeof out);
  return out;
}

struct Directory {
  std::uint64_t offset = 0, bytes = 0, entries = 0;
};

/// An archive inside a file: its offsets count from where it begins.
class Archive {
 public:
  Archive(const InputFile& file, const FileRange& range) : file_(file), range_(range) {
    if (range.offset > file.size_bytes() || range.bytes > file.size_bytes() - range.offset)
      fail(file, fmt::format("bytes {} to {} are asked for, it has {}", range.offset, range.offset + range.bytes,
                             file.size_bytes()));
  }
  const InputFile& file() const { return file_; }
  std::uint64_t size_bytes() const { return range_.bytes; }
  std::uint64_t in_file(std::uint64_t offset) const { return range_.offset + offset; }
  std::string read_string(std::uint64_t offset, std::size_t bytes) const {
    if (offset > range_.bytes || bytes > range_.bytes - offset) fail(file_, "it ends too early (is it truncated?)");
    return file_.read_string(range_.offset + offset, bytes);
  }

 private:
  const InputFile& file_;
  FileRange range_;
};

[[noreturn]] void fail(const Archive& archive, const std::string& what) {
  fail(archive.file(), what);
}

Directory find_directory(const Archive& file) {
  const auto size = file.size_bytes();
  if (size < kEndBytes) fail(file, fmt::format("it has only {} bytes", size));
  const auto tail_bytes = std::min<std::uint64_t>(size, kEndBytes + kMaxComment);
  const auto tail = file.read_string(size - tail_bytes, tail_bytes);
  auto at = tail.size() - kEndBytes;
  while (number<std::uint32_t>(tail, at) != kEnd) {
    if (at == 0) fail(file, "it has no end record (is it truncated?)");
    --at;
  }
  Directory out{number<std::uint32_t>(tail, at + 16), number<std::uint32_t>(tail, at + 12),
                number<std::uint16_t>(tail, at + 10)};
  const auto end_at = size - tail_bytes + at;
  if (out.offset != 0xFFFFFFFF && out.bytes != 0xFFFFFFFF && out.entries != 0xFFFF) return out;
  if (end_at < kLocatorBytes) fail(file, "it has no zip64 locator");
  const auto locator = file.read_string(end_at - kLocatorBytes, kLocatorBytes);
  if (number<std::uint32_t>(locator, 0) != kLocator) return out;  // exactly 65535 entries, for example
  const auto record = file.read_string(number<std::uint64_t>(locator, 8), kEnd64Bytes);
  if (number<std::uint32_t>(record, 0) != kEnd64) fail(file, "its zip64 end record is missing");
  return {number<std::uint64_t>(record, 48), number<std::uint64_t>(record, 40), number<std::uint64_t>(record, 32)};
}

// Sizes that do not fit into 32 bits lie in the extra field with tag 1, in this order.
void read_zip64(std::string_view extra, std::uint64_t& raw, std::uint64_t& packed, std::uint64_t& local) {
  while (extra.size() >= 4) {
    const auto tag = number<std::uint16_t>(extra, 0), bytes = number<std::uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) return;
    if (tag == 1) {
      std::size_t at = 4;
      for (auto* value : {&raw, &packed, &local})
        if (*value == 0xFFFFFFFF && at + 8 <= 4u + bytes) {
          *value = number<std::uint64_t>(extra, at);
          at += 8;
        }
      return;
    }
    extra.remove_prefix(4u + bytes);
  }
}

// The entry that starts at `at` of the directory; moves `at` behind it.
ZipEntry read_entry(const Archive& file, std::string_view directory, std::size_t& at) {
  if (directory.size() - at < kCentralBytes || number<std::uint32_t>(directory, at) != kCentral)
    fail(file, "an entry of its directory is damaged");
  const auto fixed = directory.substr(at, kCentralBytes);
  const std::size_t name_bytes = number<std::uint16_t>(fixed, 28), extra_bytes = number<std::uint16_t>(fixed, 30),
                    comment_bytes = number<std::uint16_t>(fixed, 32);
  if (directory.size() - at - kCentralBytes < name_bytes + extra_bytes + comment_bytes)
    fail(file, "an entry of its directory is damaged");
  ZipEntry out;
  out.name = directory.substr(at + kCentralBytes, name_bytes);
  out.crc = number<std::uint32_t>(fixed, 16);
  std::uint64_t packed = number<std::uint32_t>(fixed, 20), local = number<std::uint32_t>(fixed, 42);
  out.bytes = number<std::uint32_t>(fixed, 24);
  read_zip64(directory.substr(at + kCentralBytes + name_bytes, extra_bytes), out.bytes, packed, local);
  at += kCentralBytes + name_bytes + extra_bytes + comment_bytes;
  if (number<std::uint16_t>(fixed, 8) & 1) fail(file, fmt::format("entry '{}' is encrypted", out.name));
  if (number<std::uint16_t>(fixed, 10) != 0 || packed != out.bytes)
    fail(file, fmt::format("entry '{}' is compressed; torch.save stores entries uncompressed", out.name));
  const auto size = file.size_bytes();
  if (local > size || size - local < kLocalBytes)
    fail(file, fmt::format("entry '{}' starts behind the end of the file", out.name));
  const auto header = file.read_string(local, kLocalBytes);
  if (number<std::uint32_t>(header, 0) != kLocal)
    fail(file, fmt::format("entry '{}' has no header where it should be", out.name));
  out.offset = local + kLocalBytes + number<std::uint16_t>(header, 26) + number<std::uint16_t>(header, 28);
  if (out.offset > size || out.bytes > size - out.offset)
    fail(file, fmt::format("entry '{}' has {} bytes at byte {}, but the file has only {} (is it truncated?)", out.name,
                           out.bytes, out.offset, size));
  out.offset = file.in_file(out.offset);
  return out;
}

void check_apart(const Archive& file, std::vector<ZipEntry> entries) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  for (std::size_t i = 1; i < entries.size(); ++i)
    if (entries[i].offset < entries[i - 1].offset + entries[i - 1].bytes)
      fail(file, fmt::format("entries '{}' and '{}' overlap", entries[i - 1].name, entries[i].name));
}

}  // namespace

std::vector<ZipEntry> list_zip(const InputFile& file) {
  return list_zip(file, {0, file.size_bytes()});
}

std::vector<ZipEntry> list_zip(const InputFile& whole, const FileRange& range) {
  const Archive file(whole, range);
  const auto found = find_directory(file);
  const auto size = file.size_bytes();
  if (found.offset > size || found.bytes > size - found.offset || found.bytes > kMaxDirectoryBytes ||
      found.entries > found.bytes / kCentralBytes)
    fail(file, "its directory lies outside the file");
  const auto directory = file.read_string(found.offset, found.bytes);
  std::vector<ZipEntry> out;
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < found.entries; ++i) out.push_back(read_entry(file, directory, at));
  check_apart(file, out);
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (std::size_t i = 1; i < out.size(); ++i)
    if (out[i].name == out[i - 1].name) fail(file, fmt::format("two entries have the name '{}'", out[i].name));
  return out;
}

std::string read_zip_entry(const InputFile& file, const ZipEntry& entry) {
  auto out = file.read_string(entry.offset, entry.bytes);
  if (crc32(out.data(), out.size()) != entry.crc)
    fail(file, fmt::format("the checksum of entry '{}' is wrong", entry.name));
  return out;
}

}  // namespace tessera::io
