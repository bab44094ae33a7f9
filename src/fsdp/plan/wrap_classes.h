#pragma once
// The policies whose class names can be checked against a module tree.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::fsdp {

struct WrapClasses {
  std::vector<std::string> names;
  bool operator()(const std::string& name, const nn::HookedModule& module) const;
  /// ConfigError for a class that no module below the root has.
  void check_matches(const nn::HookedModule& root) const;
};

struct WrapPeft {
  WrapClasses classes;
  bool operator()(const std::string& name, const nn::HookedModule& module) const;
};

/// Resolved by fully_shard(): what the units are.
struct SameAsWrap {
  bool operator()(const std::string&, const nn::HookedModule&) const { return false; }
};

/// The first of every n modules that the policy chooses.
struct EveryNth {
  std::int64_t n;
  WrapPolicy policy;
  std::int64_t seen = 0;
  bool operator()(const std::string& name, const nn::HookedModule& module) { return policy(name, module) && takes(); }
  /// Of one that is chosen.
  bool takes() { return seen++ % n == 0; }
};

/// Of activation_checkpointing: 0 where there is none, n of every_nth(), else 1.
std::int64_t recomputed_every(const WrapPolicy& policy);

/// ConfigError for a policy by class names that names a class which the tree lacks.
void check_classes(const WrapPolicy& policy, const nn::HookedModule& root);

}  // namespace tessera::fsdp
