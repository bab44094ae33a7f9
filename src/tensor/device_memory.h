#pragma once
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <new>
#include <optional>
#include <string>

#include "base/plain_reason.h"
#include "tessera/base/error.h"

namespace tessera::tensor {

/// A device had no memory left. what() says where, how much, and what helps; the program's exit code is that of memory.
class OutOfDeviceMemory : public std::bad_alloc {
 public:
  /// place: "step 3, forward of unit 'lm_head'"; reason: libtorch's; help: what helps.
  OutOfDeviceMemory(const std::string& place, const std::string& reason, const std::string& help);
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

/// Against a lack of memory in training.
inline constexpr const char* kHelpInTraining =
    "--gradient_checkpointing true, a smaller --per_device_train_batch_size (with more --gradient_accumulation_steps) "
    "or --max_length, adapters, and fsdp_offload_params: true, which keeps all but what computes in host memory. "
    "Checkpoints that were saved are whole";

/// body(); where the device's library refuses something, what it says comes behind place(): as OutOfDeviceMemory, else
/// as an Error.
template <class Place, class Body>
void naming_device_errors(const Place& place, const Body& body, const char* help = kHelpInTraining) {
  try {
    body();
  } catch (const c10::OutOfMemoryError& e) {
    throw OutOfDeviceMemory(place(), e.what_without_backtrace(), help);
  } catch (const c10::AcceleratorError& e) {
    throw Error(place() + ": " + plain_reason(e.what_without_backtrace()));
  }
}

/// The most bytes that the device's allocator had given out at once (torch.cuda.max_memory_allocated); none: of the
/// CPU, or of an allocator that does not count.
std::optional<std::int64_t> peak_device_bytes(c10::Device device);

}  // namespace tessera::tensor
