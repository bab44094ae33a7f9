#include "config/accelerate_convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "config/accelerate_input.h"
#include "config/yaml_writer.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

using FileJson = nlohmann::json;

/// Of accelerate's ClusterConfig.
const FileJson& file_defaults() {
  static const FileJson defaults = {{"compute_environment", "LOCAL_MACHINE"},
                                    {"debug", false},
                                    {"downcast_bf16", false},
                                    {"enable_cpu_affinity", false},
                                    {"machine_rank", 0},
                                    {"main_training_function", "main"},
                                    {"num_machines", 1},
                                    {"num_processes", -1},
                                    {"rdzv_backend", "static"},
                                    {"same_network", false},
                                    {"tpu_use_cluster", false},
                                    {"tpu_use_sudo", false},
                                    {"use_cpu", false}};
  return defaults;
}

/// Every key and value is one that launch would read.
void check_document(const Node& document, const std::string& name) {
  AccelerateInput input;
  std::vector<std::string> warnings;
  read_accelerate_document(document, name, input, warnings);
}

/// YAML's `no` without quotes is false, and means the precision of that name.
void name_switches(FileJson& file) {
  for (const char* key : {"mixed_precision", "downcast_bf16", "distributed_type"})
    if (file.contains(key) && file[key] == false) file[key] = std::string(key) == "distributed_type" ? "NO" : "no";
}

/// fsdp_config with all its keys, by their full names: some stand at the top level, some without the prefix.
void gather_fsdp_keys(FileJson& file) {
  FileJson fsdp = FileJson::object();
  if (file.contains("fsdp_config") && file["fsdp_config"].is_object())
    for (const auto& [key, value] : file["fsdp_config"].items())
      fsdp[key.starts_with("fsdp_") ? key : "fsdp_" + key] = value;
  for (auto it = file.begin(); it != file.end();) {
    const bool is_stray = it.key().starts_with("fsdp_") && it.key() != "fsdp_config";
    if (is_stray) fsdp[it.key()] = *it;
    it = is_stray ? file.erase(it) : std::next(it);
  }
  if (!fsdp.empty()) file["fsdp_config"] = std::move(fsdp);
}

void drop_empty(FileJson& file) {
  for (auto it = file.begin(); it != file.end();)
    it = it->is_null() || (it->is_object() && it->empty()) ? file.erase(it) : std::next(it);
}

bool is_of_version_1(const std::string& key) {
  static const std::vector<std::string> keys = {"fsdp_backward_prefetch", "fsdp_backward_prefetch_policy",
                                                "fsdp_forward_prefetch", "fsdp_sync_module_states",
                                                "fsdp_use_orig_params"};
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

/// Numbers and switches may stand in quotes. Empty: the key is not there, or null.
std::string value_text(const FileJson& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : json_text(*found);
}

/// Of a strategy's name, which launch takes in any case, its number, or a switch.
bool reshards(const std::string& strategy) {
  return strategy == "FULL_SHARD" || strategy == "HYBRID_SHARD" || strategy == "4" ||
         parse_bool(strategy).value_or(false);
}

/// What a strategy's name meant, where true or false does not say it.
void note_strategy(const std::string& strategy, std::vector<std::string>& notes) {
  if (strategy == "NO_SHARD" || strategy == "3")
    notes.push_back(
        "NO_SHARD becomes fsdp_reshard_after_forward: false, which shards; for whole copies set distributed_type: "
        "MULTI_CPU or MULTI_GPU");
  if (strategy.starts_with("HYBRID") || strategy == "4" || strategy == "5")
    notes.push_back(
        strategy +
        ": version 2 says the groups with parallelism_config: parallelism_config_dp_replicate_size (copies) "
        "and parallelism_config_dp_shard_size (ranks that share one); add them");
}

}  // namespace

FileJson updated_document(const Node& document, const std::string& name) {
  check_document(document, name);
  FileJson file = typed(document);
  name_switches(file);
  gather_fsdp_keys(file);
  if (!file.contains("distributed_type"))
    throw ConfigError(name + ": distributed_type is missing; set it to FSDP, NO, MULTI_CPU or MULTI_GPU",
                      "distributed_type");
  if (!file.contains("num_processes") && file["distributed_type"] == "NO") file["num_processes"] = 1;
  if (!file.contains("mixed_precision") && parse_bool(value_text(file, "fp16")).value_or(false))
    file["mixed_precision"] = "fp16";
  file.erase("fp16");
  if (const auto backend = file.find("dynamo_backend"); backend != file.end()) {
    const bool is_on = backend->is_string() && *backend != "NO";
    if (is_on) file["dynamo_config"] = {{"dynamo_backend", *backend}};
    file.erase("dynamo_backend");
  }
  for (const auto& [key, value] : file_defaults().items())
    if (!file.contains(key)) file[key] = value;
  drop_empty(file);
  return file;
}

FileJson to_fsdp2(const Node& document, const std::string& name, std::vector<std::string>& notes) {
  check_document(document, name);
  FileJson file = typed(document);
  name_switches(file);
  gather_fsdp_keys(file);
  const FileJson old = file.value("fsdp_config", FileJson::object());
  if (old.empty() || value_text(old, "fsdp_version") == "2") {
    notes.push_back(old.empty() ? "no fsdp_config in the file: nothing to convert"
                                : "the file is of version 2 already: nothing to convert");
    return file;
  }
  FileJson converted = {{"fsdp_version", 2}};
  for (const auto& [key, value] : old.items()) {
    if (is_of_version_1(key)) {
      notes.push_back(key + " is not part of version 2 and is left out");
    } else if (key == "fsdp_reshard_after_forward" || key == "fsdp_sharding_strategy") {
      std::string strategy = value_text(old, key);
      std::transform(strategy.begin(), strategy.end(), strategy.begin(),
                     [](unsigned char c) { return std::toupper(c); });
      converted["fsdp_reshard_after_forward"] = reshards(strategy);
      note_strategy(strategy, notes);
    } else if (key != "fsdp_version") {
      converted[key] = value;
    }
  }
  file["fsdp_config"] = converted;
  return file;
}

}  // namespace tessera::config
