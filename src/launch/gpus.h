#pragma once

namespace tessera::launch {

/// Whether the system shows an NVIDIA GPU.
bool has_gpu();

}  // namespace tessera::launch
