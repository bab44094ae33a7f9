#pragma once
#include <map>

#include "tessera/io/tensor_source.h"

namespace tessera::io {

/// `base` with some tensors given more rows (a vocabulary that has grown): `rows` by name. The rows behind the stored
/// ones are the mean of the stored ones, so that a new token is as likely as the average one. Reading a new row reads
/// the whole tensor once.
std::shared_ptr<TensorSource> resized_source(std::shared_ptr<const TensorSource> base,
                                             std::map<std::string, std::int64_t> rows);

}  // namespace tessera::io
