#pragma once
// Brings host memory to a device while the device computes. Pinned memory is copied by the device alone. Pageable
// memory, as of mapped files, goes through pinned pieces that threads of this rank fill, so that whoever queues
// computation does not wait; where no memory can be pinned, the caller waits for the copy.
#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "tensor/copy_stream.h"

namespace tessera::tensor {

class Uploader {
 public:
  explicit Uploader(at::Device device);
  /// Nobody waits for a batch any more.
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  /// Copies that are waited for together. See Note [Copy streams].
  class Batch;
  /// Behind what the computing stream was told so far.
  std::shared_ptr<Batch> begin();
  /// Both contiguous, of one dtype.
  void add(const std::shared_ptr<Batch>& batch, const at::Tensor& to, const at::Tensor& from);
  /// Nothing more is added.
  void end(Batch& batch);
  /// The computing stream waits for the copies; the host, until pageable memory was read.
  void wait(Batch& batch);
  /// The host waits for all copies: what they read may be given back then.
  void settle();

 private:
  struct Ring;
  Ring* ring();  // null: no memory can be pinned

  CopyStream stream_;
  int threads_;  // that fill pieces
  std::unique_ptr<Ring> ring_;
};

}  // namespace tessera::tensor
