#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// Rows of table [num, dim]: ids [...] int64 -> [..., dim]. Backward adds rows into one zeroed table, in the order of
/// the ids, so its bits depend on nothing else. DataError names an id outside the table.
at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids);

}  // namespace tessera::nn
