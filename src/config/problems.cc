#include "config/problems.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::config {

void Problems::add(std::string message, std::string key) {
  const bool known =
      !key.empty() && std::any_of(found_.begin(), found_.end(), [&](const Problem& p) { return p.key == key; });
  if (!known) found_.push_back({std::move(message), std::move(key)});
}

void Problems::throw_all() const {
  if (found_.empty()) return;
  const std::string& key = found_.front().key;
  if (found_.size() == 1) {
    throw ConfigError(found_.front().message + (hint_.empty() ? "" : "; " + hint_), key);
  }
  std::string text = fmt::format("{} problems with the command line:", found_.size());
  for (const Problem& problem : found_) text += "\n  " + problem.message;
  throw ConfigError(text + (hint_.empty() ? "" : "\n" + hint_), key);
}

}  // namespace tessera::config
