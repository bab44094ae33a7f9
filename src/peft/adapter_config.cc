#include "peft/adapter_config.h"

#include "base/json_text.h"
#include "families/config_reader.h"
#include "peft/older_folders.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

using nlohmann::json;

void bind_all(ConfigKeys& keys, PeftMethod& method) {
  keys.text("task_type", method.task_type);
  keys.text("base_model_name_or_path", method.base_model_name_or_path);
  keys.text("revision", method.revision);
  keys.flag("inference_mode", method.inference_mode);
  if (method.has_modules_to_save()) keys.names("modules_to_save", method.modules_to_save);
  keys.ignored("peft_type", method.type());
  keys.ignored("peft_version", "0.21.2");
  keys.ignored("auto_mapping", nullptr);
  method.bind(keys);
}

/// What a key that is not used has.
bool is_neutral(const json& value) {
  return value.is_null() || value == json(false) || value == json("") || (value.is_structured() && value.empty());
}

/// A key that this version does not know may be of a newer PEFT and change what is computed.
void check_unknown(const families::ConfigReader& in, const json& document, const std::string& origin,
                   std::vector<std::string>* notes) {
  for (const auto& [key, value] : document.items()) {
    if (in.asked_for(key)) continue;
    if (!is_neutral(value)) {
      throw ConfigError(origin + ": unknown key '" + key + "' with the value " + json_text(value) +
                            " may change what the adapter computes; remove it if it does not",
                        key);
    }
    if (notes) notes->push_back(origin + ": unknown key '" + key + "' is ignored");
  }
}

}  // namespace

std::unique_ptr<PeftMethod> read_peft_keys(const nlohmann::ordered_json& ordered, const std::string& origin,
                                           std::vector<std::string>* notes, UnknownKeys unknown) {
  const json document = ordered;
  const families::ConfigReader in(document, origin);
  std::unique_ptr<PeftMethod> method;
  try {
    method = make_method(in.get<std::string>("peft_type", ""));
  } catch (const ConfigError& e) {
    throw ConfigError(origin + ": " + e.what(), "peft_type");
  }
  ConfigKeys keys(in, &ordered);
  bind_all(keys, *method);
  if (unknown == UnknownKeys::kRefused) check_unknown(in, document, origin, notes);
  return method;
}

std::unique_ptr<PeftMethod> read_peft_file(const std::string& file, std::vector<std::string>* notes) {
  return read_peft_keys(families::read_ordered_json(file), file, notes);
}

std::unique_ptr<PeftMethod> read_adapter_config(const std::string& folder, std::vector<std::string>* notes) {
  const std::string file = folder + "/adapter_config.json";
  const auto keys = families::read_ordered_json(file);
  auto method = read_peft_keys(keys, file, notes);
  heed_writer(keys, folder, *method, notes);
  return method;
}

std::string adapter_config_json(const PeftMethod& method) {
  const auto written = method.as_saved();
  written->inference_mode = true;
  ConfigKeys keys;
  bind_all(keys, *written);
  return json_text(keys.document(), 2);
}

}  // namespace tessera::peft
