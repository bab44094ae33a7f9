#include "estimate/model_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/open_file.h"
#include "families/config_reader.h"
#include "families/families.h"
#include "families/model_folder.h"
#include "families/quantization.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/weight_index.h"
#include "formats/weight_names.h"
#include "tessera/base/error.h"

namespace tessera::estimate {
namespace {

namespace fs = std::filesystem;
/// The files that an index names, each once.
std::vector<fs::path> files_of_index(const fs::path& index) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : read_weight_map(index.string())) names.insert(file);
  std::vector<fs::path> files;
  for (const auto& name : names) files.push_back(index.parent_path() / name);
  return files;
}

/// Whether config.json says that the output head is the token table.
bool has_tied_head(const fs::path& folder) {
  const auto file = folder / "config.json";
  if (!is_there(file)) return false;
  const auto config = families::read_json(file.string());
  return config.contains("tie_word_embeddings") && config["tie_word_embeddings"].is_boolean() &&
         config["tie_word_embeddings"].get<bool>();
}

bool is_packed(const fs::path& folder) {
  const auto file = folder / "config.json";
  return is_there(file) && families::read_quantization(families::read_json(file.string()), file.string()).has_value();
}

/// No dtype packs more than eight elements into a byte; so sums of sizes do not overflow.
void check_size(const ModelTensor& t, std::uint64_t bytes, const std::string& file) {
  double numel = 1;
  for (const auto size : t.shape) numel *= static_cast<double>(size);
  if (numel > 8 * static_cast<double>(bytes))
    throw DataError(fmt::format("{}: tensor '{}': its shape needs more than its {} bytes", file, t.name, bytes), file);
}

/// Of the tensors that are tied one counts, under whichever name the files have it.
void keep_one_table(const std::vector<ModelTensor>& left_out, std::vector<ModelTensor>& out) {
  for (const auto& copy : left_out) {
    if (copy.shape.size() != 2) continue;
    if (std::none_of(out.begin(), out.end(), [&](const ModelTensor& t) { return t.shape == copy.shape; }))
      out.push_back(copy);
  }
}

std::vector<ModelTensor> from_safetensors(const std::vector<fs::path>& files, bool has_head) {
  std::vector<ModelTensor> out, left_out;
  for (const auto& file : files) {
    const auto header = read_safetensors_header(file.string());
    check_safetensors_layout(header);
    for (const auto& entry : header.entries) {
      check_size({entry.name, entry.shape, entry.dtype}, entry.end - entry.begin, file.string());
      const bool floating = entry.dtype.starts_with("F") || entry.dtype.starts_with("BF");
      if (floating)
        (is_ignorable_weight(entry.name, has_head) ? left_out : out).push_back({entry.name, entry.shape, entry.dtype});
    }
  }
  keep_one_table(left_out, out);
  return out;
}

std::vector<ModelTensor> from_gguf(const std::string& file) {
  constexpr std::uint32_t kF32 = 0, kF16 = 1, kBf16 = 30;
  const auto bytes = fs::file_size(file);
  std::vector<ModelTensor> out;
  for (const auto& tensor : read_gguf_header(file).tensors) {
    check_size({tensor.name, tensor.shape, {}}, bytes, file);
    if (tensor.name.starts_with("rope_freqs")) continue;  // of the positions, not a parameter
    const char* dtype = tensor.type == kF32 ? "F32" : tensor.type == kF16 ? "F16" : tensor.type == kBf16 ? "BF16" : "";
    out.push_back({tensor.name, tensor.shape, dtype});
  }
  return out;
}

/// What the family's code makes of config.json alone.
std::vector<ModelTensor> from_config(const std::string& file) {
  const auto config = families::parse_config(families::read_json(file), file);
  std::vector<ModelTensor> out;
  for (auto& p : families::parameters_of(families::blueprint_of(config)))
    out.push_back({std::move(p.name), std::move(p.shape), families::stored_dtype_of(config)});
  return out;
}

}  // namespace

std::int64_t ModelTensor::numel() const {
  std::int64_t n = 1;
  for (const auto size : shape) n *= size;
  return n;
}

std::string weights_of(const std::string& model) {
  return is_there(fs::path(model) / "adapter_config.json") ? families::find_model(model).folder : model;
}

std::vector<ModelTensor> read_model_tensors(const std::string& path) {
  const fs::path at(path);
  if (!is_there(at))
    throw ConfigError(
        fmt::format(
            "'{}' does not exist; expected a model's folder (with config.json), a .safetensors or a .gguf file. "
            "Nothing is downloaded: fetch the model first",
            path),
        "model_name");
  if (fs::is_directory(at)) {
    if (is_packed(at))
      throw ConfigError(fmt::format("the weights of '{}' are packed in 4 bits, which no estimate counts yet; name the "
                                    "folder of the model they were made from",
                                    path),
                        "model_name");
    const bool has_head = !has_tied_head(at);
    if (is_there(at / "model.safetensors")) return from_safetensors({at / "model.safetensors"}, has_head);
    const auto index = at / "model.safetensors.index.json";
    if (is_there(index)) return from_safetensors(files_of_index(index), has_head);
    if (const auto gguf = find_gguf(path)) return from_gguf(*gguf);
    if (is_there(at / "config.json")) return from_config((at / "config.json").string());
    throw ConfigError(fmt::format("'{}' holds no model; looked for model.safetensors, model.safetensors.index.json, a "
                                  ".gguf file and config.json",
                                  path),
                      "model_name");
  }
  if (at.extension() == ".safetensors") return from_safetensors({at}, !has_tied_head(at.parent_path()));
  if (at.extension() == ".gguf") return from_gguf(path);
  throw ConfigError(fmt::format("'{}' is no model; expected a folder, a .safetensors or a .gguf file", path),
                    "model_name");
}

}  // namespace tessera::estimate
