#pragma once
// Typed reading of config.json: a missing key or null gives the default (but null where a bool stands is false, as
// Python takes it), a wrong type a ConfigError that names key and file. A reader knows afterwards which keys were asked
// for.
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <type_traits>

#include "base/json_text.h"
#include "tessera/base/error.h"

namespace tessera::families {

class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& json, std::string file) : json_(json), file_(std::move(file)) {}

  template <class T>
  T get(const std::string& key, T fallback) const {
    const auto it = find(key);
    if (it == json_.end()) return fallback;
    if (it->is_null()) return std::is_same_v<T, bool> ? T{} : fallback;
    return converted<T>(*it, key);
  }

  /// A size: a product of two is a number of elements, which int64 holds.
  std::int64_t positive(const std::string& key, std::int64_t fallback, std::int64_t largest = 0x7FFFFFFF) const {
    const auto value = get<std::int64_t>(key, fallback);
    if (value <= 0)
      throw ConfigError(file_ + ": key '" + key + "' must be positive, found " + std::to_string(value), key);
    if (value > largest)
      throw ConfigError(
          file_ + ": key '" + key + "' is at most " + std::to_string(largest) + " here, found " + std::to_string(value),
          key);
    return value;
  }

  /// How many modules there are of a kind: each costs memory before any weight is read.
  std::int64_t count(const std::string& key, std::int64_t fallback) const { return positive(key, fallback, 4096); }

  /// A token id, or the first of a list of ids.
  std::int64_t token(const std::string& key, std::int64_t fallback) const {
    const auto it = find(key);
    if (it != json_.end() && it->is_array() && !it->empty()) return converted<std::int64_t>(it->front(), key);
    return get<std::int64_t>(key, fallback);
  }

  bool has(const std::string& key) const { return contains(key) && !json_[key].is_null(); }
  /// Also as null.
  bool contains(const std::string& key) const { return find(key) != json_.end(); }
  /// The value of a key that is there.
  const nlohmann::json& at(const std::string& key) const { return *find(key); }
  const std::string& file() const { return file_; }

  const nlohmann::json& json() const { return json_; }
  bool asked_for(const std::string& key) const { return asked_.contains(key); }

 private:
  nlohmann::json::const_iterator find(const std::string& key) const {
    asked_.insert(key);
    return json_.find(key);
  }
  template <class T>
  T converted(const nlohmann::json& value, const std::string& key) const {
    try {
      // Other conversions lose digits, or are undefined.
      if (!std::is_integral_v<T> || !value.is_number_float() || is_whole(value.template get<double>()))
        return value.template get<T>();
    } catch (const nlohmann::json::exception&) {
    }
    throw ConfigError(file_ + ": key '" + key + "' has the unexpected value " + json_text(value), key);
  }
  static bool is_whole(double x) { return std::abs(x) < 0x1p31 && x == std::floor(x); }

  const nlohmann::json& json_;
  std::string file_;
  mutable std::set<std::string> asked_;
};

/// Whether transformers 5 or newer wrote the file.
bool is_of_transformers_5(const ConfigReader& in);

/// config.json (or another file) of a folder. ConfigError when it is missing or not JSON.
nlohmann::json read_json(const std::string& file);
/// Keys in the file's order.
nlohmann::ordered_json read_ordered_json(const std::string& file);

/// "dtype" or "torch_dtype" as safetensors spells it, "BF16"; "F32" when the file says nothing or "auto".
std::string stored_dtype(const ConfigReader& config);

}  // namespace tessera::families
