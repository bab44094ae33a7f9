#pragma once
// Brings pages of mapped files into memory while their reader still computes with others: a thread of its own, because
// the kernel lets whoever asks for more than a disk's queue holds wait.
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tessera::tensor {

class PageReader {
 public:
  PageReader();
  /// Waits for the piece that is being read.
  ~PageReader();
  PageReader(const PageReader&) = delete;
  PageReader& operator=(const PageReader&) = delete;

  /// These views of files will be read soon, after those that were asked for before. Returns at once; whoever reads
  /// earlier waits for the pages as ever. The views stay mapped until forget() or the end.
  void bring(const std::vector<at::Tensor>& views);
  /// Nobody will read this view for a while: what of it is not read yet stays on the disk.
  void forget(const at::Tensor& view);
  /// Until all that was asked for is there.
  void wait();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::tensor
