#include "families/base_name.h"

#include "base/open_file.h"
#include "families/config_reader.h"

namespace tessera::families {

std::string base_name_of(const std::string& adapter_folder) {
  const std::string file = adapter_folder + "/adapter_config.json";
  const auto json = read_json(file);
  const ConfigReader in(json, file);
  const auto name = in.get<std::string>("base_model_name_or_path", "");
  const auto revision = in.get<std::string>("revision", "");
  const bool is_plain = name.empty() || revision.empty() || revision == "main" || is_there(name);
  return is_plain ? name : name + "@" + revision;
}

}  // namespace tessera::families
