#include "tensor/mapped_zeros.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <cstddef>

namespace tessera::tensor {
namespace {

constexpr std::size_t kSmallestMapping = 1 << 20;  // bytes; below, a mapping of its own is not worth it

}  // namespace

at::Tensor mapped_zeros(std::int64_t numel, at::ScalarType dtype) {
  const auto bytes = static_cast<std::size_t>(numel) * c10::elementSize(dtype);
  void* memory = MAP_FAILED;
  if (bytes >= kSmallestMapping)
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return at::zeros({numel}, dtype);
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  ::madvise(memory, bytes, MADV_DONTFORK);
  return at::from_blob(
      memory, {numel}, [bytes](void* data) { ::munmap(data, bytes); }, at::TensorOptions().dtype(dtype));
}

at::Tensor lasting_zeros(std::int64_t numel, at::ScalarType dtype, at::Device device) {
  if (device.is_cpu()) return mapped_zeros(numel, dtype);
  return at::zeros({numel}, at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace tessera::tensor
