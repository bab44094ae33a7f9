#include "optim/optim_args.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/nearest.h"
#include "config/option_value.h"
#include "tessera/base/error.h"

namespace tessera::optim {

OptimArgs::OptimArgs(const std::string& text, std::string optimizer) : optimizer_(std::move(optimizer)) {
  for (const auto& pair : config::split_words(text)) {
    const auto equals = pair.find('=');
    if (equals == std::string::npos || equals == 0)
      throw ConfigError("optim_args: expected key=value pairs parted by commas, found '" + pair + "'", "optim_args");
    values_[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
}

const std::string* OptimArgs::find(const char* key) {
  known_[key] = true;
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void OptimArgs::reject(const char* key, const char* expected, const std::string& found) const {
  throw ConfigError(
      "optim_args of '" + optimizer_ + "': expected " + expected + " for '" + key + "', found '" + found + "'",
      "optim_args");
}

void OptimArgs::take(const char* key, double* target, const Range& range) {
  const auto* text = find(key);
  if (!text || *text == "None") return;
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size()) reject(key, "a number", *text);
  if (!(value >= range.least && value <= range.most)) reject(key, range.words, *text);  // a NaN neither
  *target = value;
}

void OptimArgs::take(const char* key, bool* target) {
  const auto* text = find(key);
  if (!text) return;
  const auto value = config::parse_bool(*text);
  if (!value) reject(key, "true or false", *text);
  *target = *value;
}

void OptimArgs::take(const char* key, std::int64_t* target) {
  const auto* text = find(key);
  if (!text || *text == "None") return;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *target);
  if (error != std::errc() || end != text->data() + text->size()) reject(key, "a whole number", *text);
}

void OptimArgs::take(const char* key, std::string* target, const std::vector<std::string>& allowed) {
  const auto* text = find(key);
  if (!text) return;
  std::string list;
  for (const auto& word : allowed) list += (list.empty() ? "" : ", ") + word;
  if (std::find(allowed.begin(), allowed.end(), *text) == allowed.end()) reject(key, list.c_str(), *text);
  *target = *text;
}

void OptimArgs::check_all_taken() const {
  std::vector<std::string> known;
  std::string list;
  for (const auto& [key, unused] : known_) {
    known.push_back(key);
    list += (list.empty() ? "" : ", ") + key;
  }
  for (const auto& [key, value] : values_)
    if (!known_.contains(key))
      throw ConfigError("optim_args: optimizer '" + optimizer_ + "' has no argument '" + key + "'" +
                            did_you_mean(key, known) + "; it takes " + list,
                        "optim_args");
}

}  // namespace tessera::optim
