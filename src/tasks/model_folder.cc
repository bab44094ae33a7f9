#include "tasks/model_folder.h"

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/open_file.h"
#include "models/gguf_model.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
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
  if (!fs::exists(main)) return {};
  std::string revision = read_file(main.string());
  while (!revision.empty() && (revision.back() == '\n' || revision.back() == ' ')) revision.pop_back();
  return model / "snapshots" / revision;
}

}  // namespace

std::string find_model_folder(const std::string& name_or_path) {
  if (is_there(fs::path(name_or_path) / "config.json") || models::gguf_file_of(name_or_path)) return name_or_path;
  if (fs::is_directory(name_or_path)) {
    throw DataError("the model folder '" + name_or_path + "' has neither a config.json nor a GGUF file", name_or_path);
  }
  const fs::path snapshot = cached_snapshot(name_or_path);
  if (!snapshot.empty() && is_there(snapshot / "config.json")) return snapshot.string();
  throw DataError("the model '" + name_or_path + "' is neither a folder here nor in the Hugging Face cache (" +
                      hub_cache().string() + "). Download it first and give the path of its folder.",
                  name_or_path);
}

}  // namespace tessera::tasks
