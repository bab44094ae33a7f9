#pragma once
// The model's weights out of whatever a run has left.
#include <memory>
#include <string>

#include "tessera/io/tensor_source.h"

namespace tessera::checkpoint {

/// kModel: parameters by their names in the model. kAdapter: of an adapter alone.
struct OpenedState {
  enum class Kind { kModel, kAdapter } kind = Kind::kModel;
  std::shared_ptr<io::TensorSource> source;
  std::string found;  // which file or folder it is, for messages
};

/// `path`: a checkpoint or model folder, a folder of torch.distributed.checkpoint, or one weight file. Looked for, in
/// this order: model.safetensors and its like, adapter_model.safetensors, pytorch_model_fsdp.bin,
/// pytorch_model_fsdp_0/, the folder itself as one of torch.distributed.checkpoint. DataError lists what was looked
/// for.
OpenedState open_state(const std::string& path);

}  // namespace tessera::checkpoint
