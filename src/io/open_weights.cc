#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/open_file.h"
#include "formats/weight_index.h"
#include "io/safetensors_reader.h"
#include "io/torch_file.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

std::vector<StoredTensor> list_file(const fs::path& file) {
  const auto kind = file.extension();
  const bool torch = kind == ".bin" || kind == ".pt" || kind == ".pth";
  return torch ? list_torch_file(file.string()) : list_safetensors(file.string());
}

std::shared_ptr<TensorSource> open_index(const fs::path& index) {
  const auto weight_map = read_weight_map(index.string());
  std::map<std::string, std::map<std::string, StoredTensor>> files;
  for (const auto& [name, file] : weight_map) {
    if (files.count(file)) continue;
    const auto path = index.parent_path() / file;
    if (!is_there(path))
      throw DataError(fmt::format("{}: tensor '{}' should be in {}, which does not exist. Is the download complete?",
                                  index.string(), name, path.string()),
                      index.string());
    auto& tensors = files[file];
    for (auto& t : list_file(path)) tensors.emplace(t.info.name, t);
  }
  std::vector<StoredTensor> out;
  for (const auto& [name, file] : weight_map) {
    auto it = files[file].find(name);
    if (it == files[file].end())
      throw DataError(fmt::format("{}: tensor '{}' should be in {}, which does not contain it", index.string(), name,
                                  (index.parent_path() / file).string()),
                      index.string());
    out.push_back(it->second);
  }
  return make_stored_source(std::move(out));
}

}  // namespace

std::shared_ptr<TensorSource> open_weights(const std::string& folder_or_file) {
  const fs::path path(folder_or_file);
  if (!is_there(path))
    throw DataError(
        fmt::format("{}: no such file or folder (expected a model folder or a weight file)", folder_or_file),
        folder_or_file);
  if (!fs::is_directory(path))
    return path.extension() == ".json" ? open_index(path) : make_stored_source(list_file(path));
  constexpr const char* kNames[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                    "pytorch_model.bin.index.json"};
  std::string looked_for;
  for (const char* name : kNames) {
    if (is_there(path / name)) return open_weights((path / name).string());
    looked_for.append(looked_for.empty() ? "" : ", ").append(name);
  }
  throw DataError(fmt::format("{}: no weights found; looked for {}", folder_or_file, looked_for), folder_or_file);
}

}  // namespace tessera::io
