#pragma once
// Which files of a model's repository are read here.
#include "hub/fetch.h"
#include "hub/model_folder.h"

namespace tessera::hub {

/// Settings, tokenizers, templates and terms of use; of the weights those that io::open_weights() would choose: one
/// file or an index with its parts, safetensors before torch's, else the one GGUF file; an adapter's beside them.
/// DataError from the selection: there are no such weights, or several GGUF files.
Wanted model_files(const RepositoryName& name, ModelParts parts);

}  // namespace tessera::hub
