#pragma once
#include <optional>
#include <string>
#include <vector>

namespace tessera::launch {

/// Whether the system shows an NVIDIA GPU.
bool has_gpu();

/// For each of the first `ranks` GPUs that are visible, the CPUs beside it (of its PCI root, mostly a socket's), by
/// what the kernel says in /proc/driver/nvidia and /sys/bus/pci. `visible`: as CUDA_VISIBLE_DEVICES, numbers alone;
/// unset: all. GPUs are counted by their PCI addresses, as CUDA counts equal ones. Empty where any of it is not known.
std::vector<std::vector<int>> cpus_beside_gpus(int ranks, const std::optional<std::string>& visible,
                                               const std::string& root = "");

}  // namespace tessera::launch
