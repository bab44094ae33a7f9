#include "estimate/model_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/dotted_name.h"
#include "base/open_file.h"
#include "estimate/kept_outputs.h"
#include "estimate/packed_bytes.h"
#include "estimate/rank_memory.h"
#include "families/config_reader.h"
#include "families/families.h"
#include "families/quantization.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "formats/weight_index.h"
#include "formats/weight_names.h"
#include "hub/model_folder.h"
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
  return tensors_of(families::parse_config(families::read_json(file), file));
}

/// Tensors of files, with what their shapes do not say, if there is a config.json of a family that is known here.
std::vector<ModelTensor> described(std::vector<ModelTensor> tensors, const fs::path& folder) {
  const auto file = (folder / "config.json").string();
  if (!is_there(file)) return tensors;
  try {
    describe_kept_outputs(families::parse_config(families::read_json(file), file), tensors);
  } catch (const ConfigError&) {  // what does not run here can be counted all the same
  }
  return tensors;
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  if (is_there(folder / "model.safetensors")) return {folder / "model.safetensors"};
  const auto index = folder / "model.safetensors.index.json";
  return is_there(index) ? files_of_index(index) : std::vector<fs::path>{};
}

/// Whether bitsandbytes leaves this module dense.
bool is_skipped(const std::string& module, const std::vector<std::string>& skipped) {
  return std::any_of(skipped.begin(), skipped.end(), [&](const std::string& part) {
    return ("." + module + ".").find("." + part + ".") != std::string::npos;
  });
}

/// What the files have of each module, besides its bias, and of each tensor its dtype.
struct StoredModules {
  std::map<std::string, std::int64_t> bytes;
  std::map<std::string, SafetensorsEntry> entries;

  explicit StoredModules(const std::vector<fs::path>& files) {
    for (const auto& file : files) {
      const auto header = read_safetensors_header(file.string());
      check_safetensors_layout(header);
      for (const auto& entry : header.entries) {
        entries.emplace(entry.name, entry);
        for (auto dot = entry.name.find('.'); dot != std::string::npos; dot = entry.name.find('.', dot + 1))
          if (entry.name.compare(dot, std::string::npos, ".bias") != 0)
            bytes[entry.name.substr(0, dot)] += static_cast<std::int64_t>(entry.end - entry.begin);
      }
    }
  }
};

/// Nothing: config.json has no quantization_config.
std::optional<std::vector<ModelTensor>> read_packed_folder(const fs::path& folder) {
  const auto file = (folder / "config.json").string();
  if (!is_there(file)) return std::nullopt;
  const auto config = families::read_json(file);
  const auto settings = families::read_quantization(config, file);
  if (!settings) return std::nullopt;
  const StoredModules stored(weight_files(folder));
  auto tensors = from_config(file);
  for (auto& t : tensors) {
    const auto entry = stored.entries.find(t.name);
    const bool dense = entry != stored.entries.end() && entry->second.shape == t.shape && entry->second.dtype != "I8";
    if (dense) t.dtype = entry->second.dtype;
    const bool left_out =
        !is_linear(t) || is_skipped(module_of(t.name), settings->skip_modules.value_or(std::vector<std::string>()));
    if (dense || (left_out && stored.entries.empty())) continue;
    const auto found = stored.bytes.find(module_of(t.name));
    if (!stored.entries.empty() && found == stored.bytes.end()) continue;  // tied, or not of the files' names
    if (t.shape.size() != 2) continue;
    t.dtype.clear();
    t.packed_bytes = stored.entries.empty() ? packed_bytes(bits_of(*settings), t.shape[0], t.shape[1]) : found->second;
  }
  return tensors;
}

}  // namespace

bool is_linear(const ModelTensor& t) {
  return t.shape.size() == 2 && t.name.ends_with(".weight") && !unit_of(t.name).empty() &&
         t.name.find("relative_attention_bias") == std::string::npos;
}

bool is_head(const std::string& parameter) {
  return parameter.find("head") != std::string::npos;
}

MatrixSides sides_of(const ModelTensor& matrix) {
  return {matrix.shape.at(matrix.in_out ? 0 : 1), matrix.shape.at(matrix.in_out ? 1 : 0)};
}

std::string module_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

std::int64_t ModelTensor::numel() const {
  std::int64_t n = 1;
  for (const auto size : shape) n *= size;
  return n;
}

hub::ModelPlace weights_of(const std::string& model) {
  const std::string place = hub::find_settings(model);
  if (is_there(fs::path(place) / "adapter_config.json")) return hub::find_model(model, hub::ModelParts::kSettings);
  return {.folder = place, .adapter = {}};
}

std::vector<ModelTensor> tensors_of(const families::FamilyConfig& config) {
  std::vector<ModelTensor> out;
  for (auto& p : families::parameters_of(families::blueprint_of(config)))
    out.push_back({std::move(p.name), std::move(p.shape), families::stored_dtype_of(config)});
  describe_kept_outputs(config, out);
  return out;
}

std::vector<ModelTensor> read_model_tensors(const std::string& path) {
  const fs::path at(path);
  if (!is_there(at))
    throw ConfigError(
        fmt::format("'{}' does not exist; expected a model's folder (with config.json), a .safetensors or a .gguf file",
                    path),
        "model_name");
  if (fs::is_directory(at)) {
    if (auto packed = read_packed_folder(at)) return *std::move(packed);
    const bool has_head = !has_tied_head(at);
    if (const auto files = weight_files(at); !files.empty()) return described(from_safetensors(files, has_head), at);
    if (const auto gguf = find_gguf(path)) return from_gguf(*gguf);
    if (is_there(at / "config.json")) return from_config((at / "config.json").string());
    throw ConfigError(fmt::format("'{}' holds no model; looked for model.safetensors, model.safetensors.index.json, a "
                                  ".gguf file and config.json",
                                  path),
                      "model_name");
  }
  if (at.extension() == ".safetensors") {
    const auto folder = at.parent_path();
    return described(from_safetensors({at}, !has_tied_head(folder)), folder);
  }
  if (at.extension() == ".gguf") return from_gguf(path);
  throw ConfigError(fmt::format("'{}' is no model; expected a folder, a .safetensors or a .gguf file", path),
                    "model_name");
}

}  // namespace tessera::estimate
