#pragma once
// Keys of config.json that no family reads: those that change nothing that is computed here, and those whose other
// values would.
#include <string>
#include <vector>

#include "families/config_reader.h"

namespace tessera::families {

struct UnusedKeys {
  const char* why;
  std::vector<std::string> keys;
};
/// Without effect in families that do not read them.
const std::vector<UnusedKeys>& keys_without_effect();
bool is_without_effect(const std::string& key);

/// ConfigError for values that ask any family for what no code here computes (quantised weights, pruned heads ...).
void refuse_other_models(const ConfigReader& in);

/// One line about the keys that were not read and are not known; empty: there is none.
std::string unknown_keys_note(const ConfigReader& in);

}  // namespace tessera::families
