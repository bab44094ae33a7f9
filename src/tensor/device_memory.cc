#include "tensor/device_memory.h"

#include "base/plain_reason.h"

namespace tessera::tensor {

OutOfDeviceMemory::OutOfDeviceMemory(const std::string& place, const std::string& reason)
    : what_(place + ": " + plain_reason(reason) +
            ". What helps: --gradient_checkpointing true, a smaller --per_device_train_batch_size (with more "
            "--gradient_accumulation_steps) or --max_length, adapters, and fsdp_offload_params: true, which keeps all "
            "but what computes in host memory. Checkpoints that were saved are whole") {}

}  // namespace tessera::tensor
