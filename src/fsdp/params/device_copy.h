#pragma once
// What a unit computes with where another device than the host's processor computes. Slices, masters, gradients and
// optimizer state stay in host memory, and so do gathers and reductions; here are copies of the whole segments and of
// mapped parameters, on the device from gather to release.
//
// They are made by a stream of their own (tensor/copy_stream.h), which the unit that computes meanwhile does not wait
// for: start() is told when a unit is gathered ahead, finish() when it is to compute.
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/params/parameter_store.h"
#include "fsdp/plan/flat_layout.h"
#include "tensor/uploader.h"

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
  /// All must outlive it.
  DeviceCopy(const std::vector<UnitParameter>& parameters, const ParameterStore& store, at::Device device,
             tensor::Uploader& uploader, GatherMeter& meter);
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  /// Begins to copy what is not there and, into the same memory, what was written since. The store must be gathered,
  /// and stay so until finish() or clear().
  void start();
  /// The computing stream waits for that.
  void finish();
  /// A slice was written since.
  bool stale() const;
  void clear() noexcept;
  /// Where the parameter lies from its offset on, between start() and clear().
  const at::Tensor& memory_of(std::size_t parameter) const;

 private:
  struct Copy {
    at::Tensor tensor;
    std::optional<std::uint32_t> version = {};  // of the slice
  };
  /// visit(copy, host's memory, version) for all that is not there.
  template <class Visit>
  void visit_missing(const Visit& visit);

  const std::vector<UnitParameter>& parameters_;
  const ParameterStore& store_;
  at::Device device_;
  tensor::Uploader& uploader_;
  GatherMeter& meter_;
  std::vector<Copy> segments_, mapped_;               // the second by parameter
  std::shared_ptr<tensor::Uploader::Batch> started_;  // null: finished
};

}  // namespace tessera::fsdp
