#pragma once
// What a unit computes with where another device than the host's processor computes. Slices, masters, gradients and
// optimizer state stay in host memory, and so do gathers and reductions; here are copies of the whole segments and of
// mapped parameters, on the device from gather to release.
//
// They are made on the stream that is current when the unit is gathered, which is the one that computes, so that no
// block is given to others before what reads it is done.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fsdp/params/parameter_store.h"
#include "fsdp/plan/flat_layout.h"

namespace tessera::fsdp {

struct UnitParameter {
  ParameterSpec spec;
  at::Tensor tensor;  // the module's own, detached while the unit is sharded
  int segment = -1;   // -1: mapped
  std::int64_t offset = 0;
  at::Tensor mapped;  // the view of the weight file, in host memory
  int position = 0;   // in the model's order of registration
};

class DeviceCopy {
 public:
  /// Both must outlive it.
  DeviceCopy(const std::vector<UnitParameter>& parameters, const ParameterStore& store, at::Device device,
             GatherMeter& meter);
  ~DeviceCopy() { clear(); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  /// Copies what is not there and, into the same memory, what was written since. The store must be gathered.
  void update();
  /// A slice was written since.
  bool stale() const;
  void clear();
  /// Where the parameter lies from its offset on, between update() and clear().
  const at::Tensor& memory_of(std::size_t parameter) const;

 private:
  struct Copy {
    at::Tensor tensor;
    std::uint32_t version = 0;  // of the slice
  };
  void bring(Copy& copy, const at::Tensor& host, std::uint32_t version);

  const std::vector<UnitParameter>& parameters_;
  const ParameterStore& store_;
  at::Device device_;
  GatherMeter& meter_;
  std::vector<Copy> segments_, mapped_;  // the second by parameter
};

}  // namespace tessera::fsdp
