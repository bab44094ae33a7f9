#include "io/zip_layout.h"

#include <algorithm>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::io {
namespace {

constexpr std::uint64_t kDataAlignment = 64, kMax32 = 0xFFFFFFFF;
constexpr std::size_t kLocalHeaderBytes = 30, kZip64ExtraBytes = 4 + 16, kExtraHeaderBytes = 4;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put16(std::string& out, std::uint64_t value) {
  put(out, static_cast<std::uint16_t>(value));
}
void put32(std::string& out, std::uint64_t value) {
  put(out, static_cast<std::uint32_t>(std::min(value, kMax32)));
}

/// From "version needed" to the sizes: what the local and the central header have in common.
void put_common(std::string& out, std::uint64_t bytes, std::uint32_t crc, std::uint64_t version) {
  put16(out, version);
  put16(out, 0x0800);  // names are UTF-8
  put16(out, 0);       // stored
  put32(out, 0);       // no time: the same content gives the same bytes
  put(out, crc);
  put32(out, bytes);
  put32(out, bytes);
}

}  // namespace

std::size_t ZipLayout::add(std::string name, std::uint64_t bytes) {
  Entry e{std::move(name), bytes, end_, 0, 0};
  const std::uint64_t fixed =
      e.header + kLocalHeaderBytes + e.name.size() + kExtraHeaderBytes + (bytes >= kMax32 ? kZip64ExtraBytes : 0);
  e.data = (fixed + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  end_ = e.data + bytes;
  entries_.push_back(std::move(e));
  return entries_.size() - 1;
}

std::string ZipLayout::header(std::size_t entry) const {
  const Entry& e = entries_[entry];
  const bool large = e.bytes >= kMax32;
  std::string out;
  put(out, std::uint32_t{0x04034b50});
  put_common(out, e.bytes, e.crc, large ? 45 : 0);
  put16(out, e.name.size());
  const std::uint64_t extra = e.data - e.header - kLocalHeaderBytes - e.name.size();
  put16(out, extra);
  out += e.name;
  if (large) {
    put16(out, 1);
    put16(out, 16);
    put(out, e.bytes);
    put(out, e.bytes);
  }
  const std::uint64_t padding = extra - (large ? kZip64ExtraBytes : 0) - kExtraHeaderBytes;
  out += "FB";  // the tag that torch gives its padding
  put16(out, padding);
  out.append(padding, 'Z');
  TESSERA_CHECK(out.size() == e.data - e.header, "a zip header fills its place");
  return out;
}

std::string ZipLayout::directory() const {
  std::string out;
  for (const Entry& e : entries_) {
    const bool large = e.bytes >= kMax32, far = e.header >= kMax32;
    const std::size_t extra = (large || far ? 4 : 0) + (large ? 16 : 0) + (far ? 8 : 0);
    put(out, std::uint32_t{0x02014b50});
    put16(out, 45);
    put_common(out, e.bytes, e.crc, large || far ? 45 : 0);
    put16(out, e.name.size());
    put16(out, extra);
    put16(out, 0);  // comment
    put16(out, 0);  // disk
    put16(out, 0);  // internal attributes
    put32(out, 0);  // external attributes
    put32(out, e.header);
    out += e.name;
    if (extra == 0) continue;
    put16(out, 1);
    put16(out, extra - 4);
    if (large) put(out, e.bytes), put(out, e.bytes);
    if (far) put(out, e.header);
  }
  const std::uint64_t bytes = out.size(), count = entries_.size();
  if (count >= 0xFFFF || end_ >= kMax32 || bytes >= kMax32) {
    const std::uint64_t record_at = end_ + bytes;
    put(out, std::uint32_t{0x06064b50});
    put(out, std::uint64_t{44});
    put16(out, 45);
    put16(out, 45);
    put32(out, 0);
    put32(out, 0);
    put(out, count);
    put(out, count);
    put(out, bytes);
    put(out, end_);
    put(out, std::uint32_t{0x07064b50});
    put32(out, 0);
    put(out, record_at);
    put32(out, 1);
  }
  put(out, std::uint32_t{0x06054b50});
  put32(out, 0);  // disks
  put16(out, std::min<std::uint64_t>(count, 0xFFFF));
  put16(out, std::min<std::uint64_t>(count, 0xFFFF));
  put32(out, bytes);
  put32(out, end_);
  put16(out, 0);
  return out;
}

}  // namespace tessera::io
