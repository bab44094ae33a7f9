#pragma once
// Files of torch.save (pytorch_model.bin): a zip archive with a pickle and one entry for each storage.
#include <string>
#include <vector>

#include "io/stored_tensor.h"
#include "io/zip_archive.h"

namespace tessera::io {

/// The tensors of a state dict. Runs no code of the file (io/pickle.h). DataError names the file and the tensor.
std::vector<StoredTensor> list_torch_file(const std::string& file);

/// The one tensor that an archive of torch.save inside a file holds (nothing around it); it has no name.
StoredTensor list_torch_tensor(const std::shared_ptr<const InputFile>& file, const FileRange& range);

/// The tensors of a file of torch.save at any depth of its dicts, named by their keys joined with '/'
/// ("state/lm_head.weight/exp_avg"); other values and lists are skipped.
std::vector<StoredTensor> list_nested_torch_file(const std::string& file);

}  // namespace tessera::io
