#include "families/model_folder.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/open_file.h"
#include "families/config_reader.h"
#include "formats/gguf.h"
#include "tessera/base/error.h"

namespace tessera::families {
namespace {

namespace fs = std::filesystem;

fs::path hub_cache() {
  if (const char* cache = std::getenv("HF_HUB_CACHE")) return cache;
  if (const char* home = std::getenv("HF_HOME")) return fs::path(home) / "hub";
  const char* user = std::getenv("HOME");
  return fs::path(user ? user : "/") / ".cache" / "huggingface" / "hub";
}

/// models--org--name/snapshots/<revision of refs/main>
fs::path cached_snapshot(std::string name) {
  for (std::size_t at; (at = name.find('/')) != std::string::npos;) name.replace(at, 1, "--");
  const fs::path model = hub_cache() / ("models--" + name);
  const fs::path main = model / "refs" / "main";
  if (!is_there(main)) return {};
  std::string revision = read_file(main.string());
  while (!revision.empty() && (revision.back() == '\n' || revision.back() == ' ')) revision.pop_back();
  return model / "snapshots" / revision;
}

/// The path itself where there is something, else a snapshot of the cache.
std::string place_of(const std::string& name_or_path) {
  if (is_there(name_or_path)) return name_or_path;
  const fs::path snapshot = cached_snapshot(name_or_path);
  if (!snapshot.empty() && is_there(snapshot)) return snapshot.string();
  throw DataError("the model '" + name_or_path + "' is neither a folder here nor in the Hugging Face cache (" +
                      hub_cache().string() + "). Download it first and give the path of its folder.",
                  name_or_path);
}

/// Published adapters may have a config.json beside their own; weights of a model they have not.
bool is_adapter(const fs::path& folder) {
  constexpr std::array kWeights{"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                "pytorch_model.bin.index.json"};
  return is_there(folder / "adapter_config.json") &&
         std::none_of(kWeights.begin(), kWeights.end(), [&](const char* name) { return is_there(folder / name); });
}

}  // namespace

std::string base_name_of(const std::string& adapter_folder) {
  const std::string file = adapter_folder + "/adapter_config.json";
  const auto json = read_json(file);
  return ConfigReader(json, file).get<std::string>("base_model_name_or_path", "");
}

std::string find_model_folder(const std::string& name_or_path) {
  const std::string place = place_of(name_or_path);
  if (is_adapter(place))
    throw DataError("'" + name_or_path + "' holds an adapter of '" + base_name_of(place) +
                        "', where a whole model is asked for: name that one, or merge the adapter into it " +
                        "(tessera merge); what trains goes on from an adapter with --adapter_name_or_path",
                    name_or_path);
  if (is_there(fs::path(place) / "config.json") || find_gguf(place)) return place;
  throw DataError("the model folder '" + name_or_path + "' has neither a config.json nor a GGUF file", name_or_path);
}

ModelPlace find_model(const std::string& name_or_path) {
  const std::string place = place_of(name_or_path);
  if (!is_adapter(place)) return {.folder = find_model_folder(name_or_path), .adapter = {}};
  const std::string base = base_name_of(place);
  if (base.empty())
    throw ConfigError("'" + name_or_path + "' holds an adapter that does not say which model it is for; name the " +
                          "model, and the adapter with --adapter_name_or_path",
                      "base_model_name_or_path");
  return {.folder = find_model_folder(base), .adapter = place};
}

}  // namespace tessera::families
