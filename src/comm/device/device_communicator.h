#pragma once
// A group whose tensors may lie on a device: objects, barriers, notes and tensors of the host go through the group that
// it is made of, tensors of the device through an engine.
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera::comm {

/// Collectives of one group for contiguous 1-D tensors on its device, with the meaning that Communicator gives them:
/// sums in rank order, in float32. Work::wait() makes the current stream of the device wait, not the host.
class DeviceEngine {
 public:
  virtual ~DeviceEngine() = default;
  virtual std::string name() const = 0;
  /// CommError where an operation has failed whose Work was waited for already: what it wrote is not right. The group
  /// asks before every exchange of objects, so between a backward and the optimizer's step, too.
  virtual void check() {}
  virtual std::unique_ptr<Work> all_gather(at::Tensor out, at::Tensor in) = 0;
  virtual std::unique_ptr<Work> reduce_scatter(at::Tensor out, at::Tensor in, ReduceOptions how) = 0;
  virtual std::unique_ptr<Work> all_reduce(at::Tensor t, ReduceOp op) = 0;
  virtual std::unique_ptr<Work> broadcast(at::Tensor t, int src) = 0;
  /// Collective over `part`, a group split from this one.
  virtual std::unique_ptr<DeviceEngine> split(std::shared_ptr<Communicator> part) = 0;
};

/// Through the host's memory: ranks that share a device, and the reference for other engines.
std::unique_ptr<DeviceEngine> make_staged_engine(std::shared_ptr<Communicator> host);
/// NVIDIA's NCCL (comm/device/nccl.h). Collective: its communicator begins here. CommError, or ConfigError where there
/// is no NCCL.
std::unique_ptr<DeviceEngine> make_nccl_engine(std::shared_ptr<Communicator> host, at::Device device);

/// Collective. The engine for ranks that compute on `device` each: NCCL for GPUs of their own; through the host where
/// ranks share one, and for devices that are not NVIDIA's. TESSERA_DEVICE_TRANSPORT (nccl, host) decides otherwise.
std::shared_ptr<Communicator> with_device(std::shared_ptr<Communicator> host, at::Device device);
std::shared_ptr<Communicator> with_device(std::shared_ptr<Communicator> host, std::unique_ptr<DeviceEngine> engine);

}  // namespace tessera::comm
