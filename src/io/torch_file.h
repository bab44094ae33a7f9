#pragma once
// Files of torch.save (pytorch_model.bin): a zip archive with a pickle and one entry for each storage.
#include <string>
#include <vector>

#include "io/stored_tensor.h"

namespace tessera::io {

/// The tensors of a state dict. Runs no code of the file (io/pickle.h). DataError names the file and the tensor.
std::vector<StoredTensor> list_torch_file(const std::string& file);

}  // namespace tessera::io
