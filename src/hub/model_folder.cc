#include "hub/model_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/open_file.h"
#include "families/base_name.h"
#include "formats/gguf.h"
#include "hub/fetch.h"
#include "hub/model_files.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;

/// The path itself where there is something, else a snapshot in the cache.
std::string place_of(const std::string& name_or_path, ModelParts parts) {
  if (name_or_path.empty() || is_there(name_or_path)) return name_or_path;
  const auto name = name_of_missing(Kind::kModel, name_or_path);
  return fetch(name, model_files(name, parts), settings_from_environment());
}

/// Published adapters may have a config.json beside their own; weights of a model they have not.
bool is_adapter(const fs::path& folder) {
  constexpr std::array kWeights{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                "pytorch_model.bin.index.json"};
  return is_there(folder / "adapter_config.json") &&
         std::none_of(kWeights.begin(), kWeights.end(), [&](const char* name) { return is_there(folder / name); });
}

/// What a place without a model is instead; goes on from its name.
std::string what_it_is(const fs::path& place) {
  std::error_code code;
  if (!fs::is_directory(place, code)) return "is a file; name the folder that it lies in";
  const fs::directory_iterator snapshot(place / "snapshots", code);
  if (!code && snapshot != fs::directory_iterator())
    return "is a repository in the Hub's cache; name its snapshot '" + snapshot->path().string() + "', or org/name";
  return "has neither a config.json, nor an adapter_config.json, nor a GGUF file";
}

std::string checked_model(const std::string& place, const std::string& name_or_path) {
  if (is_adapter(place))
    throw DataError(
        "'" + name_or_path + "' holds an adapter of '" + families::base_name_of(place) +
            "', where a whole model is asked for: name that one, or merge the adapter into it " +
            "(tessera merge); what trains or classifies takes the adapter beside it, with --adapter_name_or_path",
        name_or_path);
  if (is_there(fs::path(place) / "config.json") || find_gguf(place)) return place;
  throw DataError("the model folder '" + name_or_path + "' " + what_it_is(place), name_or_path);
}

}  // namespace

std::string find_model_folder(const std::string& name_or_path) {
  require_option(!name_or_path.empty(), "a model is to be named: a folder, or org/name on the Hub",
                 "model_name_or_path");
  return checked_model(place_of(name_or_path, ModelParts::kAll), name_or_path);
}

ModelPlace find_model(const std::string& name_or_path, ModelParts parts) {
  const std::string place = place_of(name_or_path, parts);
  if (!is_adapter(place)) return {.folder = checked_model(place, name_or_path), .adapter = {}};
  return {.folder = find_base(place, "--model BASE --adapter " + name_or_path, parts), .adapter = place};
}

std::string find_base(const std::string& adapter, const std::string& instead, ModelParts parts) {
  const std::string base = families::base_name_of(adapter);
  if (base.empty())
    throw ConfigError("'" + adapter + "' holds an adapter that does not say which model it is for; give " + instead,
                      "base_model_name_or_path");
  try {
    return checked_model(place_of(base, parts), base);
  } catch (const DataError& e) {
    throw DataError(std::string(e.what()) + ". That is the base that '" + adapter +
                        "/adapter_config.json' names; if it lies elsewhere, give " + instead,
                    base);
  }
}

std::string find_adapter(const std::string& name_or_path) {
  std::string place = place_of(name_or_path, ModelParts::kAll);
  if (place.ends_with(".gguf"))
    throw ConfigError("'" + name_or_path +
                          "' is a GGUF file, and adapters in that form are written for llama.cpp and not read here; "
                          "expected the folder of an adapter (PEFT), with adapter_config.json: name that one",
                      "adapter_name_or_path");
  return place;
}

std::string find_settings(const std::string& name_or_path) {
  return place_of(name_or_path, ModelParts::kSettings);
}

}  // namespace tessera::hub
