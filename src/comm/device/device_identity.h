#pragma once
// Which device of a host a rank computes on, however the rank numbers it: CUDA_VISIBLE_DEVICES, and the control groups
// of SLURM's --gpus-per-task, show each rank a GPU of its own as number 0.
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::comm {

/// A GPU's UUID (of a part of one, by MIG, the part's). The device's number where it is no GPU, or the driver tells no
/// UUID (before CUDA 11.4).
std::string device_identity(at::Device device);

/// From now on this function tells it (null: the driver again), for devices that are no GPUs as well.
void use_device_identity(std::function<std::string(at::Device)> identity);

/// Ranks of one host that compute on one device.
struct SharedDevice {
  std::string identity;
  std::vector<int> ranks;
};
/// Collective: the device of the lowest rank that shares its own, not the CPU; no ranks where each has one of its own.
SharedDevice find_shared_device(Communicator& group, at::Device device);

}  // namespace tessera::comm
