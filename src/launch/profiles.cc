#include "launch/profiles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/nearest.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

struct Profile {
  const char *name, *yaml;
};

/// The values of trl/accelerate_configs in TRL 1.16.
constexpr Profile kProfiles[] = {
    {"fsdp1", R"(distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_version: 1
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_forward_prefetch: true
  fsdp_reshard_after_forward: FULL_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
)"},
    {"fsdp2", R"(distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: FULL_STATE_DICT
)"},
    {"multi_gpu", "distributed_type: MULTI_GPU\nmixed_precision: bf16\n"},
    {"single_gpu", "distributed_type: 'NO'\nmixed_precision: bf16\n"},
};

}  // namespace

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const Profile& one : kProfiles) names.emplace_back(one.name);
  return names;
}

std::string profile(const std::string& name) {
  for (const Profile& one : kProfiles)
    if (name == one.name) return one.yaml;
  if (name == "zero1" || name == "zero2" || name == "zero3") {
    throw ConfigError(fmt::format("--accelerate_config {} belongs to another engine (DeepSpeed); fsdp2 shards as zero3 "
                                  "does, and --fsdp_reshard_after_forward false with it as zero2",
                                  name),
                      "accelerate_config");
  }
  throw ConfigError(fmt::format("--accelerate_config '{}' is neither a file nor one of {}{}", name,
                                fmt::join(profile_names(), ", "), did_you_mean(name, profile_names())),
                    "accelerate_config");
}

}  // namespace tessera::launch
