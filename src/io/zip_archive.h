#pragma once
// The directory of a zip file whose entries are stored uncompressed, as torch.save writes it (zip64 included).
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/input_file.h"

namespace tessera::io {

struct ZipEntry {
  std::string name;
  std::uint64_t offset = 0, bytes = 0;  // of the data, inside the file
  std::uint32_t crc = 0;
};

/// Sorted by name. DataError: not a zip file, truncated, a compressed or encrypted entry, data outside the file,
/// entries that overlap, equal names.
std::vector<ZipEntry> list_zip(const InputFile& file);

/// The same of an archive that is a part of the file.
struct FileRange {
  std::uint64_t offset = 0, bytes = 0;
};
std::vector<ZipEntry> list_zip(const InputFile& file, const FileRange& range);

/// The data of an entry, checked against its CRC-32.
std::string read_zip_entry(const InputFile& file, const ZipEntry& entry);

}  // namespace tessera::io
