#pragma once
// manifest.json: the list of a checkpoint's files with sizes and CRC-32C checksums, and its own. Written last, so a
// folder without one is not a whole checkpoint. docs/checkpoint_format.md has the format.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::checkpoint {

inline constexpr int kManifestVersion = 1;
inline constexpr const char* kManifestName = "manifest.json";

struct FileRecord {
  std::string name;  // in a manifest: relative to the folder, with '/'
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
  std::int64_t offset = 0;  // of a part that one rank wrote; 0 in a manifest
};

struct Manifest {
  int version = kManifestVersion;
  std::string created_by;
  std::int64_t step = 0;
  int world_size = 1;
  std::vector<FileRecord> files;  // by name
};

/// Of every file under `folder`, and into it. `known`: records by path, whole or in parts, whose checksums need no
/// reading.
/// CheckpointError when it cannot be written.
void write_manifest(const std::string& folder, std::int64_t step, int world_size, const std::vector<FileRecord>& known);

/// CheckpointError: no such folder, no manifest in it, no JSON, damaged (its own checksum), of a later version; names
/// the file and the remedy.
Manifest read_manifest(const std::string& folder);
Manifest parse_manifest(const std::string& text, const std::string& file);

/// What is wrong with the files, in words: missing, of another size or (kChecksums) of another checksum. Empty:
/// nothing.
enum class Depth { kSizes, kChecksums };
std::string find_damage(const std::string& folder, Depth depth);
/// The same of what was found in the files' parts, each byte in one of them.
std::string find_damage(const Manifest& manifest, const std::vector<FileRecord>& found);

}  // namespace tessera::checkpoint
