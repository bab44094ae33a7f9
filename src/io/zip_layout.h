#pragma once
// A zip archive without compression whose entries' sizes are known before their bytes: where everything will lie, so
// that the bytes can be written in any order. (PKWARE's APPNOTE.TXT, 4.3; zip64 where sizes or offsets need it.)
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::io {

class ZipLayout {
 public:
  /// Adds an entry; its data begin at a multiple of 64 bytes, as torch.save writes them. Returns its index.
  std::size_t add(std::string name, std::uint64_t bytes);

  std::uint64_t data_offset(std::size_t entry) const { return entries_[entry].data; }
  void set_crc(std::size_t entry, std::uint32_t crc) { entries_[entry].crc = crc; }

  std::size_t size() const { return entries_.size(); }
  std::uint64_t header_offset(std::size_t entry) const { return entries_[entry].header; }
  /// The bytes from header_offset() to data_offset(), once the checksum is known.
  std::string header(std::size_t entry) const;
  /// What follows the last entry, once all checksums are known; then the archive ends.
  std::uint64_t directory_offset() const { return end_; }
  std::string directory() const;

 private:
  struct Entry {
    std::string name;
    std::uint64_t bytes = 0, header = 0, data = 0;
    std::uint32_t crc = 0;
  };
  std::vector<Entry> entries_;
  std::uint64_t end_ = 0;
};

}  // namespace tessera::io
