#pragma once
// The policies whose class names can be checked against a module tree.
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

}  // namespace tessera::fsdp
