#include <fmt/format.h>

#include <filesystem>

#include "base/env.h"
#include "base/nearest.h"
#include "config/accelerate_input.h"
#include "tessera/base/error.h"

namespace tessera::config {
namespace {

/// Sections of other engines, which change the training: refused where they would be used, unless they are empty.
struct ForeignSection {
  const char* key;
  const char* used_with;  // what else the file says then
  bool (*is_used)(const AccelerateInput& input);
  const char* remedy;
};

bool has_type(const AccelerateInput& input, const char* type) {
  return input.distributed_type && detail::equal_ignoring_case(*input.distributed_type, type);
}

const ForeignSection kForeignSections[] = {
    {"deepspeed_config", "distributed_type DEEPSPEED",
     [](const AccelerateInput& input) { return has_type(input, "DEEPSPEED"); },
     "set distributed_type to FSDP, with fsdp_sharding_strategy FULL_SHARD for zero_stage 3, SHARD_GRAD_OP for 2"},
    {"megatron_lm_config", "distributed_type MEGATRON_LM",
     [](const AccelerateInput& input) { return has_type(input, "MEGATRON_LM"); }, "set distributed_type to FSDP"},
    {"fp8_config", "mixed_precision fp8",
     [](const AccelerateInput& input) { return input.mixed_precision == MixedPrecision::kFp8; },
     "set mixed_precision to bf16"},
    {"mpirun_config", "distributed_type MULTI_CPU",
     [](const AccelerateInput& input) { return has_type(input, "MULTI_CPU") || has_type(input, "NO"); },
     "remove it, and let mpirun start 'tessera TASK' on each rank itself, or set num_machines and main_process_ip"},
};
const ForeignSection* find_foreign(const std::string& key) {
  for (const ForeignSection& section : kForeignSections) {
    if (key == section.key) return &section;
  }
  return nullptr;
}

/// Keys that mean nothing on these machines: a warning where they are set to something.
const std::vector<std::string> kIgnoredKeys = {"command_file",
                                               "commands",
                                               "tpu_name",
                                               "tpu_zone",
                                               "tpu_env",
                                               "tpu_use_cluster",
                                               "tpu_vm",
                                               "tpu_use_sudo",
                                               "downcast_bf16",
                                               "dynamo_config",
                                               "fsdp_activation_checkpointing_offload"};

bool contains(const std::vector<std::string>& list, const std::string& name) {
  for (const std::string& item : list) {
    if (item == name) return true;
  }
  return false;
}

bool is_empty(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return true;
    case Node::Kind::kScalar:
      return node.text.empty() || parse_bool(node.text) == false || detail::equal_ignoring_case(node.text, "none");
    case Node::Kind::kList:
      return node.items.empty();
    case Node::Kind::kMap:
      for (const Node::Entry& entry : node.entries) {
        if (!is_empty(entry.value)) return false;
      }
      return true;
  }
  return true;
}

class Reader {
 public:
  Reader(const std::string& name, AccelerateInput& input, std::vector<std::string>& warnings)
      : name_(name), input_(input), warnings_(warnings), table_("tessera launch", "") {
    add_accelerate_options(table_, input);
  }

  void read(const Node& document) {
    for (const Node::Entry& entry : document.entries) refuse_other_places(entry);
    for (const Node::Entry& entry : document.entries) read_top_level(entry);
    for (const Node::Entry& entry : document.entries) judge_foreign(entry);
    if (unindented_line_ > 0 || has_unindented_) {
      warnings_.push_back(
          at_line(name_, unindented_line_) +
          "fsdp_* keys at the top level are understood as part of fsdp_config (indent them to be exact)");
    }
  }

 private:
  void read_top_level(const Node::Entry& entry) {
    const std::string where = at_line(name_, entry.line);
    const bool scalar_or_list = entry.value.kind != Node::Kind::kMap;
    if (entry.key == "fsdp_config") {
      read_section(entry, [this](const Node::Entry& own) { read_fsdp_key(own); });
    } else if (entry.key.starts_with("fsdp_") && scalar_or_list) {
      if (!has_unindented_) unindented_line_ = entry.line;
      has_unindented_ = true;
      read_fsdp_key(entry);
    } else if (entry.key == "parallelism_config") {
      read_section(entry, [this](const Node::Entry& own) { read_parallelism(own); });
    } else if (find_foreign(entry.key) != nullptr) {
      return;  // judged at the end
    } else if (contains(kIgnoredKeys, entry.key)) {
      note_ignored(entry);
    } else if (entry.key == "fp16") {
      read_legacy_fp16(entry);
    } else if (!assign(entry.key, entry)) {
      const std::string near = did_you_mean(entry.key, top_level_keys());
      throw ConfigError(
          fmt::format(
              "{}unknown key '{}'{}", where, entry.key,
              near.empty() ? "; a file with flags of a task stands behind it: tessera launch ... TASK FILE" : near),
          entry.key);
    }
  }

  void note_ignored(const Node::Entry& entry) {
    if (!is_empty(entry.value))
      warnings_.push_back(fmt::format("{}{} has no effect here", at_line(name_, entry.line), entry.key));
  }

  /// A file for jobs that start elsewhere has keys that nobody reads here: it is named as what it is.
  void refuse_other_places(const Node::Entry& entry) const {
    if (entry.key != "compute_environment" || !detail::equal_ignoring_case(entry.value.text, "AMAZON_SAGEMAKER"))
      return;
    throw ConfigError(
        fmt::format("{}this file (compute_environment: AMAZON_SAGEMAKER) starts jobs on Amazon SageMaker; "
                    "'tessera config default --config_file FILE' writes one for machines of your own",
                    at_line(name_, entry.line)),
        entry.key);
  }

  void judge_foreign(const Node::Entry& entry) {
    const ForeignSection* section = find_foreign(entry.key);
    if (section == nullptr || is_empty(entry.value)) return;
    const std::string where = at_line(name_, entry.line);
    if (!section->is_used(input_)) {
      warnings_.push_back(fmt::format("{}{} has no effect without {}", where, entry.key, section->used_with));
    } else {
      throw ConfigError(fmt::format("{}{} (with {}) belongs to another engine; {}", where, entry.key,
                                    section->used_with, section->remedy),
                        entry.key);
    }
  }

  template <class ReadKey>
  void read_section(const Node::Entry& entry, const ReadKey& read_key) {
    if (entry.value.kind == Node::Kind::kNull) return;
    if (entry.value.kind != Node::Kind::kMap) {
      throw ConfigError(
          fmt::format("{}{} expects indented lines of the form 'key: value'", at_line(name_, entry.line), entry.key),
          entry.key);
    }
    for (const Node::Entry& own : entry.value.entries) read_key(own);
  }

  void read_fsdp_key(const Node::Entry& entry) {
    const std::string key = entry.key.starts_with("fsdp_") ? entry.key : "fsdp_" + entry.key;
    if (assign(key, entry)) return;
    if (contains(kIgnoredKeys, key)) return note_ignored(entry);
    std::vector<std::string> known;
    for (const std::string& flag : table_.names()) {
      if (flag.starts_with("--fsdp_")) known.push_back(flag.substr(2));
    }
    warnings_.push_back(fmt::format("{}unknown key '{}' in fsdp_config is ignored{}", at_line(name_, entry.line),
                                    entry.key, did_you_mean(key, known)));
  }

  /// parallelism_config_dp_replicate_size and ..._dp_shard_size, which resolve() checks; every other dimension must be
  /// 1, and how it would communicate does not matter.
  void read_parallelism(const Node::Entry& entry) {
    const std::string prefix = "parallelism_config_";
    const auto key = entry.key.starts_with(prefix) ? entry.key.substr(prefix.size()) : entry.key;
    const std::vector<std::string> sizes = {"dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size"};
    const std::vector<std::string> without_effect = {"cp_backend", "cp_comm_strategy", "sp_attn_implementation",
                                                     "sp_backend", "sp_seq_length",    "sp_seq_length_is_variable",
                                                     "tp_handler", "cp_handler",       "sp_handler"};
    if (contains(without_effect, key)) return;
    const std::string where = at_line(name_, entry.line);
    if (!contains(sizes, key)) {
      throw ConfigError(
          fmt::format("{}unknown key '{}' in parallelism_config{}", where, entry.key, did_you_mean(key, sizes)),
          entry.key);
    }
    int other = 1;
    int& size = key == "dp_replicate_size" ? input_.dp_replicate_size
                : key == "dp_shard_size"   ? input_.dp_shard_size
                                           : other;
    if (!bind(&size).set({number_text(entry.value)})) {
      throw ConfigError(fmt::format("{}{} expects a whole number, found '{}'", where, entry.key, entry.value.text),
                        entry.key);
    }
    if (other != 1) {
      throw ConfigError(fmt::format("{}{} {} is not supported: dp_replicate_size and dp_shard_size may be 1 or more, "
                                    "other dimensions 1",
                                    where, entry.key, other),
                        entry.key);
    }
  }

  void read_legacy_fp16(const Node::Entry& entry) {
    const auto on = parse_bool(entry.value.text);
    if (!on)
      throw ConfigError(
          fmt::format("{}fp16 expects true or false, found '{}'", at_line(name_, entry.line), entry.value.text),
          "fp16");
    if (*on && !input_.mixed_precision) input_.mixed_precision = MixedPrecision::kFp16;
  }

  /// Two spellings of one key in one file contradict each other.
  bool assign(const std::string& key, const Node::Entry& entry) {
    if (!contains(table_.names(), "--" + key)) return false;
    const std::string where = at_line(name_, entry.line);
    if (table_.given(key)) {
      throw ConfigError(fmt::format("{}'{}' sets what a line above sets already; keep one of them", where, entry.key),
                        entry.key);
    }
    return table_.assign(key, entry.value, where);
  }

  std::vector<std::string> top_level_keys() const {
    std::vector<std::string> keys = {"fsdp_config", "parallelism_config", "fp16"};
    for (const std::string& flag : table_.names()) {
      if (!flag.starts_with("--fsdp_")) keys.push_back(flag.substr(2));
    }
    for (const ForeignSection& section : kForeignSections) keys.emplace_back(section.key);
    keys.insert(keys.end(), kIgnoredKeys.begin(), kIgnoredKeys.end());
    return keys;
  }

  const std::string& name_;
  AccelerateInput& input_;
  std::vector<std::string>& warnings_;
  OptionTable table_;
  bool has_unindented_ = false;
  int unindented_line_ = 0;
};

/// Also a link that leads nowhere: who opens it says so.
bool is_named(const std::string& path) {
  std::error_code none;
  return std::filesystem::exists(std::filesystem::symlink_status(path, none));
}

}  // namespace

void read_accelerate_document(const Node& document, const std::string& name, AccelerateInput& input,
                              std::vector<std::string>& warnings) {
  Reader(name, input, warnings).read(document);
}

void read_accelerate_file(const std::string& path, AccelerateInput& input, std::vector<std::string>& warnings) {
  read_accelerate_document(read_document(path), path, input, warnings);
}

LoadedAccelerate load_accelerate(const std::string& path) {
  LoadedAccelerate loaded;
  AccelerateInput input;
  read_accelerate_file(path, input, loaded.warnings);
  loaded.config = resolve(input, path, /*has_file=*/true, loaded.warnings);
  return loaded;
}

std::string default_accelerate_path() {
  const std::string folder = huggingface_home() + "/accelerate/default_config";
  const bool only_json = !is_named(folder + ".yaml") && is_named(folder + ".json");
  return folder + (only_json ? ".json" : ".yaml");
}

}  // namespace tessera::config
