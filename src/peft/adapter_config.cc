#include "peft/adapter_config.h"

#include "families/config_reader.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

using nlohmann::json;

void bind_all(ConfigKeys& keys, PeftMethod& method) {
  keys.text("task_type", method.task_type);
  keys.text("base_model_name_or_path", method.base_model_name_or_path);
  keys.flag("inference_mode", method.inference_mode);
  keys.names("modules_to_save", method.modules_to_save);
  keys.ignored("peft_type", method.type());
  keys.ignored("peft_version", "0.21.2");
  keys.ignored("auto_mapping", nullptr);
  keys.ignored("revision", nullptr);
  method.bind(keys);
}

}  // namespace

std::unique_ptr<PeftMethod> read_peft_keys(const json& document, const std::string& origin,
                                           std::vector<std::string>* notes) {
  const families::ConfigReader in(document, origin);
  std::unique_ptr<PeftMethod> method;
  try {
    method = make_method(in.get<std::string>("peft_type", ""));
  } catch (const ConfigError& e) {
    throw ConfigError(origin + ": " + e.what(), "peft_type");
  }
  ConfigKeys keys(in);
  bind_all(keys, *method);
  for (const auto& [key, value] : document.items())
    if (!in.asked_for(key) && notes) notes->push_back(origin + ": unknown key '" + key + "' is ignored");
  return method;
}

std::unique_ptr<PeftMethod> read_peft_file(const std::string& file, std::vector<std::string>* notes) {
  return read_peft_keys(families::read_json(file), file, notes);
}

std::unique_ptr<PeftMethod> read_adapter_config(const std::string& folder, std::vector<std::string>* notes) {
  return read_peft_file(folder + "/adapter_config.json", notes);
}

std::string adapter_config_json(const PeftMethod& method) {
  const auto written = method.clone();
  written->inference_mode = true;
  ConfigKeys keys;
  bind_all(keys, *written);
  return keys.document().dump(2);
}

}  // namespace tessera::peft
