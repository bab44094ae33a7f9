#pragma once
// Parameters without memory. A tensor keeps its shape, dtype and identity while its storage is attached to, or detached
// from, memory that somebody else owns (a gathered unit, a file mapping, an ordinary allocation). Reading a detached
// tensor throws the given message; it never crashes and costs nothing per operation.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>

namespace tessera::tensor {

/// A contiguous tensor of this shape whose storage is detached. Takes no memory for its elements.
at::Tensor make_detached(at::IntArrayRef sizes, at::ScalarType dtype, const std::string& message,
                         at::Device device = at::kCPU);

/// True when reading the tensor would throw.
bool is_detached(const at::Tensor& t);

/// `t` must own the whole of its storage (offset 0). From now on it reads `data`, t.nbytes() bytes on its device;
/// `keep_alive` is held until the next attach or detach. The version counter is not bumped; autograd's saved views of
/// `t` follow.
void attach(const at::Tensor& t, void* data, at::Tensor keep_alive = {});
void attach(const at::Tensor& t, void* data, std::shared_ptr<const void> keep_alive);

/// Releases what attach() held; reading throws c10::Error with `message`.
void detach(const at::Tensor& t, const std::string& message);

/// Gives a leaf parameter another dtype (detached afterwards). Keeps identity and requires_grad.
void set_dtype(at::Tensor& t, at::ScalarType dtype, const std::string& message);

}  // namespace tessera::tensor
