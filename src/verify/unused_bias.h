#pragma once
#include <string>

#include "models/names_in_files.h"
#include "tessera/io/tensor_source.h"

namespace tessera::verify {

/// transformers 5 keeps two biases of a masked model's head that is not tied: its own, which computes nothing, gets no
/// gradient and stays as it was, and that of its matrix, which trains. True for the first where a reference has both.
/// prefix: of the reference's names ("grad.").
inline bool is_unused_bias(const models::NamesInFiles& names, const io::TensorSource& reference,
                           const std::string& name, const std::string& prefix = "") {
  const auto written = names.to_write(name);
  return written.size() == 2 && reference.find(prefix + written[1]);
}

}  // namespace tessera::verify
