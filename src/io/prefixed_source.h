#pragma once
#include <memory>
#include <string>

#include "tessera/io/tensor_source.h"

namespace tessera::io {

/// The tensors of `base` under other names: `prefix` stands in front of each, so that files with the same names can be
/// joined.
std::shared_ptr<TensorSource> prefixed_source(std::string prefix, std::shared_ptr<const TensorSource> base);

}  // namespace tessera::io
