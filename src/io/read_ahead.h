#pragma once
// Stretches of files, read in one order by large requests of which some are always on their way: from the disk past the
// page cache (O_DIRECT: what a checkpoint holds is wanted once, and the kernel's own copy of it costs more time than
// the disk does), or through it where the bytes are in it already or other ranks of this host read them too.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "io/direct_memory.h"
#include "io/input_file.h"
#include "tessera/io/tensor_source.h"

namespace tessera::io {

/// Bytes [offset, offset + bytes) of a file.
struct Stretch {
  std::shared_ptr<const InputFile> file;
  std::uint64_t offset = 0, bytes = 0;
  Readers readers = Readers::kOne;
};

class ReadAhead {
 public:
  /// Begins at once.
  explicit ReadAhead(const std::vector<Stretch>& stretches);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Bytes [offset, offset + bytes) of `file`, inside the stretches and behind what was read before, in their order.
  /// DataError when the file ends before or the disk fails.
  void read(const InputFile& file, std::uint64_t offset, void* out, std::size_t bytes);

 private:
  enum class State { kWaiting, kInBuffer, kInCache };
  struct Block {
    std::shared_ptr<const InputFile> file;
    std::uint64_t begin = 0, end = 0;  // of the file; begin a multiple of InputFile::kBlockBytes
    Readers readers = Readers::kOne;
    State state = State::kWaiting;
    std::exception_ptr failure;
  };
  void plan(const std::vector<Stretch>& stretches);
  void fetch_blocks();
  State fetch(const Block& block, std::byte* buffer) const;
  const Block& wait_for(std::size_t block);
  std::byte* buffer_of(std::size_t block);

  std::vector<Block> blocks_;
  std::optional<DirectMemory> buffers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0, current_ = 0;  // the block to fetch; the one that is read from
  bool stopped_ = false;
  std::vector<std::thread> threads_;  // last: they use what is above
};

}  // namespace tessera::io
