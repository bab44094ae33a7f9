#pragma once
// A device's stream for copies between its memory and the host's, which go on while another stream computes.
//
// Note [Copy streams]
// The stream that computes is the caller's current one. Before copies the copy stream waits for it: what they read has
// been computed then, and nobody reads any more what they write over (memory that is taken again may still be in use
// by what was queued before). Who needs a copy waits for a mark behind it: the computing stream, or the host. Until
// then the memory at both ends stays as it is and is not freed.
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace tessera::tensor {

class CopyStream {
 public:
  explicit CopyStream(at::Device device);

  at::Device device() const { return stream_.device(); }
  /// Copies from now on begin when all that the computing stream was told is done.
  void wait_for_computation();
  /// Both contiguous, of one dtype. Queued, where the host's memory is pinned; else done when this returns.
  void copy(const at::Tensor& to, const at::Tensor& from);
  /// Becomes true when all copies so far are done.
  c10::Event mark() const;
  /// What the computing stream is told from now on begins when the mark is true.
  void block_computation(const c10::Event& mark) const;

 private:
  c10::Stream stream_;
};

}  // namespace tessera::tensor
