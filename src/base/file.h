#pragma once
// Whole files, read and written so that a reader never sees half of one.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// What tokenizers, templates, configurations and the like stay far below.
inline constexpr std::int64_t kMaxFileBytes = 256 << 20;

/// The bytes of a regular file. Throws DataError naming the path and the reason, also above `max_bytes`.
std::string read_file(const std::string& path, std::int64_t max_bytes = kMaxFileBytes);

/// The same of a text: DataError that names the first byte that is not UTF-8.
std::string read_text_file(const std::string& path);

/// Replaces `path` by `bytes`, or leaves it as it was: a temporary file in the same folder is written, flushed to disk
/// and renamed, then the folder is flushed. Throws CheckpointError naming the path and the reason; no temporary file
/// stays.
void write_file_atomically(const std::string& path, std::string_view bytes);

/// Creates `folder` (and its parents) and proves that a file can be written there, with `needed_bytes` free on its
/// disk. Throws CheckpointError naming the folder, what is wrong and the remedy. Nothing but the folder stays behind.
void ensure_writable_folder(const std::string& folder, std::int64_t needed_bytes = 0);

/// Before there is anything to write: proves that a file can be written to `folder`, or to the nearest folder
/// above it that is there already. Makes nothing.
void require_writable(const std::string& folder);

}  // namespace tessera
