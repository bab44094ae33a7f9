#pragma once
// Brings pages of mapped files into memory while their reader still computes with others. On threads of its own,
// because the kernel lets whoever asks for more than a disk's queue holds wait; on several, because a disk that gets
// one request after the other rests between them.
#include <memory>

#include "tensor/file_pages.h"

namespace tessera::tensor {

class PageReader {
 public:
  /// Of several processes that ask for the same (`rank` of `ranks`) each begins at another place, so that each brings a
  /// part from the disk and finds the rest in the page cache.
  PageReader(int rank, int ranks);
  /// Waits for the pieces that are being read.
  ~PageReader();
  PageReader(const PageReader&) = delete;
  PageReader& operator=(const PageReader&) = delete;

  /// These will be read soon, after those that were asked for before. Returns at once; whoever reads earlier waits for
  /// the pages as ever. A page that cannot be read is left to its reader.
  void bring(std::shared_ptr<const FilePages> pages);
  /// Nobody will read these for a while: what is not read yet stays on the disk. Returns when none of them is on its
  /// way any more.
  void forget(const FilePages& pages);
  /// Until all that was asked for is there.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::tensor
