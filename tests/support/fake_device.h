#pragma once
// A device that is not the CPU, on machines that have none. Its memory is ordinary memory whose addresses have one more
// bit set: whoever takes data_ptr() of one of its tensors for memory of the CPU crashes at once, wherever in the
// tensor. Copies to and from the CPU and views work as on any device; every other operator copies its arguments to the
// CPU, runs there, and copies the results back, so results have the CPU's bits. Operators refuse tensors of several
// devices, as a GPU's do. As on a GPU, autograd runs the device's nodes in a thread of its own for each index (not in
// the thread that calls backward()), which matters to what a thread keeps for itself; ranks that are threads of one
// process and wait for each other in backward need an index each.
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace tessera::test {

inline constexpr int kFakeDevices = 8;

/// Device `index` (below kFakeDevices) of libtorch's type PrivateUse1; made ready by the first call, from any thread.
at::Device fake_device(int index = 0);

/// While it lives, fake devices have kernels of their own (base/device_kernels.h), which loop on the CPU; else
/// libtorch's operators compute all, as where libtessera_cuda.so is missing.
class FakeKernels {
 public:
  FakeKernels();
  ~FakeKernels();
  FakeKernels(const FakeKernels&) = delete;
  FakeKernels& operator=(const FakeKernels&) = delete;
  /// Launches of any of them since the process began.
  static std::int64_t launches();
};

/// The index of the calling thread's current device.
int fake_current_device();

/// The memory behind an address of a fake device's tensor (or the CPU's own), for what stands in for a device's
/// library.
void* real_address(const void* address);

/// Bytes of the tensors that are on fake devices now, all together.
std::int64_t fake_device_bytes();

/// Calls for which a program waits for its GPU, since the process began: copies to and from the CPU, unless they are
/// non-blocking ones of pinned memory; operators whose result's size or value the CPU must know; the computing stream;
/// and events behind computation that nobody has waited for otherwise.
std::int64_t fake_device_waits();

/// Copies from the host's memory that device `index` may still be reading: nobody has waited for what it was told.
std::int64_t fake_device_reads(int index);
/// While it lives, host memory that is given back while copies may read it is a fault (FakeStreams::fault()). For one
/// rank: ranks that are threads share what the first of them pinned.
struct WatchedMemory {
  WatchedMemory();
  ~WatchedMemory();
  WatchedMemory(const WatchedMemory&) = delete;
  WatchedMemory& operator=(const WatchedMemory&) = delete;
};

/// What a device's library can refuse.
enum class FakeCall { kAllocation, kCopy };
/// From now on it is called before each of them, with the device's index, and may throw; null: no more. For when nobody
/// uses a device.
void before_fake_calls(std::function<void(int index, FakeCall call)> call);

/// From now on they have so much memory, all together, and are out of it beyond; 0: without limit.
void limit_fake_devices(std::int64_t bytes);

}  // namespace tessera::test
