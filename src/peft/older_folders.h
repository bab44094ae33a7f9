#pragma once
// Adapter folders whose writer computed something else than their adapter_config.json says today: those of older
// versions of PEFT, and BOFT's of a PEFT without its CUDA kernels. Found by keys that are missing, and by the tensors.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tessera::peft {

class PeftMethod;

/// `method` was read from `keys`, the folder's adapter_config.json. Sets what the tensors say otherwise; *notes (may be
/// null) get what today's PEFT, and so this program, computes otherwise than the PEFT that wrote the folder did.
/// DataError: an adapter that today's PEFT cannot read either.
void heed_writer(const nlohmann::json& keys, const std::string& folder, PeftMethod& method,
                 std::vector<std::string>* notes);

}  // namespace tessera::peft
