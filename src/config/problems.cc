#include "config/problems.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::config {

void Problems::add(std::string message, std::string key) {
  const bool known =
      !key.empty() && std::any_of(found_.begin(), found_.end(), [&](const Problem& p) { return p.key == key; });
  if (!known) found_.push_back({std::move(message), std::move(key), source_});
}

void Problems::throw_all() const {
  if (found_.empty()) return;
  const std::string& key = found_.front().key;
  std::string text = found_.front().message;
  if (found_.size() > 1) {
    text = fmt::format("{} problems with the command line:", found_.size());
    for (const Problem& problem : found_) text += "\n  " + problem.message;
  }
  if (!hint_.empty()) text += (found_.size() == 1 ? "; " : "\n") + hint_;
  if (std::any_of(found_.begin(), found_.end(), [](const Problem& p) { return p.source == Source::kWords; }))
    throw UsageError(text, key);
  throw ConfigError(text, key);
}

}  // namespace tessera::config
