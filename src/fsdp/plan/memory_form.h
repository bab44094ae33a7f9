#pragma once
// How the ranks of a shard group hold parameters and exchange gradients: one choice for a model, made here.
//  - shared: they address one region; gathers move nothing, gradients are read where they lie;
//  - copy: slices are private; gathers and reductions move them;
//  - device: slices and gradients lie on the device that computes, of one rank (StateOn::kDevice).
#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/grads/gradient_transport.h"
#include "fsdp/params/parameter_store.h"
#include "fsdp/plan/flat_layout.h"
#include "fsdp/runtime/runtime.h"

namespace tessera::fsdp {

class MemoryForm {
 public:
  virtual ~MemoryForm() = default;
  virtual bool shared() const = 0;
  /// Of the next unit in registration order.
  virtual std::unique_ptr<ParameterStore> make_store(const std::vector<Segment>& segments) = 0;
  virtual std::unique_ptr<GradientTransport> make_transport() const = 0;
};

/// Collective. `store_bytes`: what shared stores of all units need. ConfigError where the options ask for shared memory
/// that the ranks do not have, or for a device to hold what it cannot.
std::unique_ptr<MemoryForm> choose_memory_form(Runtime& runtime, std::int64_t store_bytes);

}  // namespace tessera::fsdp
