#pragma once
#include <string>

namespace tessera::families {

/// base_model_name_or_path of adapter_config.json, "org/name@revision" where it names a revision; "": it names none.
std::string base_name_of(const std::string& adapter_folder);

}  // namespace tessera::families
