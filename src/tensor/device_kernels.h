#pragma once
// The kernels of the device that a tensor lies on (base/device_kernels.h). Those for NVIDIA's GPUs are in a library of
// their own, libtessera_cuda.so: looked for beside the program, in ../lib and where libraries are searched for, when
// the first tensor of a GPU asks. Without it libtorch's operators compute, which is said once in the log.
// TESSERA_DEVICE_KERNELS names another file, or is "none".
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "base/device_kernels.h"

namespace tessera::tensor {

/// Null where there are none; the CPU has none here.
const DeviceKernels* device_kernels(const at::Tensor& t);

/// 10 * major + minor of its device's compute capability, where it has kernels that can tell; else 0.
int compute_capability(const at::Tensor& t);

/// From now on those of this type of device; they must outlive all calls.
void use_device_kernels(c10::DeviceType type, const DeviceKernels* kernels);

/// Whether t has a dtype that kernels know, and they are there.
bool has_device_kernels(const at::Tensor& t);
DeviceDtype device_dtype(at::ScalarType dtype);

/// Queues a kernel on the current stream of t's device, which has kernels. Error with the name and the device's reason.
void check_launch(const DeviceKernels& kernels, int code, const char* name);
void* current_stream(const at::Tensor& t);

template <class Arguments>
void launch(int (*DeviceKernels::*kernel)(void*, const Arguments*), const char* name, const at::Tensor& t,
            const Arguments& arguments) {
  const c10::OptionalDeviceGuard guard(t.device());
  const auto& kernels = *device_kernels(t);
  check_launch(kernels, (kernels.*kernel)(current_stream(t), &arguments), name);
}

template <class T = void>
const T* read_there(const at::Tensor& t) {
  return t.defined() ? static_cast<const T*>(t.const_data_ptr()) : nullptr;
}
template <class T = void>
T* written_there(const at::Tensor& t) {
  return t.defined() ? static_cast<T*>(t.mutable_data_ptr()) : nullptr;
}

}  // namespace tessera::tensor
