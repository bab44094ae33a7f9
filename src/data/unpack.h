#pragma once
// Data files that are compressed as a whole: rows.jsonl.gz.
#include <string>

namespace tessera::data {

/// "rows.jsonl" of rows.jsonl.gz (.bz2, .xz, .zst, .lz4), else the name as it is.
std::string without_packing(const std::string& file);

/// Writes what a file with one of these endings unpacks to; streams that were joined are one. DataError, and no file is
/// made: cut short, damaged (where its checksum shows it; .zst and .lz4 need not have one), not what its ending says.
/// CheckpointError when `path` cannot be written.
void unpack(const std::string& file, const std::string& path);

/// Where the rows lie: the file itself, or what a compressed one unpacks to. That is a file in the user's cache folder
/// (cache_key.h), made by the first call of any process, for this name, size and time of the last change, and kept.
/// Errors as above.
std::string unpacked(const std::string& file);

}  // namespace tessera::data
