#pragma once
// adapter_config.json, as PEFT reads and writes it.
#include <memory>
#include <string>
#include <vector>

#include "peft/method.h"

namespace tessera::peft {

/// adapter_config.json of a folder. ConfigError for a peft_type that is not there, and for unknown keys; those whose
/// values mean that they are not used (null, false, nothing) are ignored with a note in *notes. Of a folder that an
/// older PEFT wrote see peft/older_folders.h.
std::unique_ptr<PeftMethod> read_adapter_config(const std::string& folder, std::vector<std::string>* notes = nullptr);
/// The same from a file of any name.
std::unique_ptr<PeftMethod> read_peft_file(const std::string& file, std::vector<std::string>* notes = nullptr);
enum class UnknownKeys { kRefused, kIgnored };
/// The same from the keys themselves; `origin` names them in messages. Of rank_pattern and the like the first that
/// matches counts, in the order that they were given in.
std::unique_ptr<PeftMethod> read_peft_keys(const nlohmann::ordered_json& ordered, const std::string& origin,
                                           std::vector<std::string>* notes = nullptr,
                                           UnknownKeys unknown = UnknownKeys::kRefused);
/// adapter_config.json as PEFT writes it (json.dumps(indent=2, sort_keys=True)), but with patterns in their order,
/// which PEFT loses and reads; target modules as resolved.
std::string adapter_config_json(const PeftMethod& method);

}  // namespace tessera::peft
