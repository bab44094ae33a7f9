#pragma once
// The pinned memory through which a rank's pageable weights reach its device: what tensor/uploader.h allocates and
// estimate/rank_memory.h foretells. A few threads fill pieces of it, each its own two in turn.
#include <cstdint>

namespace tessera {

inline constexpr int kUploadThreads = 4;
inline constexpr int kUploadPieces = 2;  // of a thread
inline constexpr std::int64_t kUploadPieceBytes = 8 << 20;
inline constexpr std::int64_t kUploadRingBytes = kUploadThreads * kUploadPieces * kUploadPieceBytes;

}  // namespace tessera
