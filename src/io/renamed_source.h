#pragma once
#include <functional>
#include <memory>
#include <string>

#include "tessera/io/tensor_source.h"

namespace tessera::io {

/// The tensors of `base` under other names: `new_name` gives each its own; those that get an empty one are left out.
std::shared_ptr<TensorSource> renamed_source(std::shared_ptr<const TensorSource> base,
                                             const std::function<std::string(const std::string& name)>& new_name);

}  // namespace tessera::io
