#pragma once
// accelerate's config files from older forms to newer ones, as `accelerate config update` and `accelerate to-fsdp2` do
// it.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/document.h"

namespace tessera::config {

/// The file with accelerate's defaults for what it leaves out, old keys (fp16, dynamo_backend) as today's. ConfigError
/// when a key is unknown or a value is not one of its key's.
nlohmann::json updated_document(const Node& document, const std::string& name);

/// The file with fsdp_version 2: reshard_after_forward for the strategy, without the keys of version 1 alone, each of
/// which is named in `notes`; so is what version 2 says in another way. A file without fsdp_config, or of version 2,
/// stays as it is, which a note says.
nlohmann::json to_fsdp2(const Node& document, const std::string& name, std::vector<std::string>& notes);

}  // namespace tessera::config
