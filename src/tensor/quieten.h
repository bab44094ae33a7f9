#pragma once

namespace tessera::tensor {

/// From now on libtorch's warnings are not printed, unless the environment sets TORCH_CPP_LOG_LEVEL, which then
/// decides.
void quieten_libtorch();

}  // namespace tessera::tensor
