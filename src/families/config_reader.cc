#include "families/config_reader.h"

#include <cstdlib>

#include "base/bounded_json.h"
#include "base/file.h"
#include "base/open_file.h"
#include "base/plain_reason.h"

namespace tessera::families {

namespace {

template <class Json>
Json read(const std::string& file) {
  const auto missing = [&] {
    if (is_there(file)) return "";
    if (file.ends_with("adapter_config.json")) return "; expected the folder of an adapter (PEFT)";
    return file.ends_with("/config.json") ? "; expected the folder of a Hugging Face model" : "";
  };
  constexpr std::int64_t kMaxBytes = 64 << 20;
  try {
    auto json = Json::parse(bounded_json(read_file(file, kMaxBytes), file));
    if (!json.is_object()) throw ConfigError(file + ": expected a JSON object at the top");
    return json;
  } catch (const DataError& e) {
    throw ConfigError(std::string(e.what()) + missing());
  } catch (const nlohmann::json::exception& e) {
    throw ConfigError(file + ": " + plain_reason(e));
  }
}

}  // namespace

bool is_of_transformers_5(const ConfigReader& in) {
  constexpr int kFirst = 5;
  return std::atoi(in.get<std::string>("transformers_version", "4").c_str()) >= kFirst;
}

nlohmann::json read_json(const std::string& file) {
  return read<nlohmann::json>(file);
}

nlohmann::ordered_json read_ordered_json(const std::string& file) {
  return read<nlohmann::ordered_json>(file);
}

std::string stored_dtype(const ConfigReader& config) {
  const auto name = config.get<std::string>("dtype", config.get<std::string>("torch_dtype", "float32"));
  if (name == "bfloat16") return "BF16";
  if (name == "float16") return "F16";
  if (name == "float32" || name == "float64" || name == "auto") return "F32";
  throw ConfigError(config.file() + ": dtype '" + name + "' is not one of float32, bfloat16, float16", "dtype");
}

}  // namespace tessera::families
