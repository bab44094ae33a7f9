#pragma once
// Keys of adapter_config.json bound to members: one list of them both reads and writes.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "families/config_reader.h"

namespace tessera::peft {

class ConfigKeys {
 public:
  /// Writes: every bound key goes to document().
  ConfigKeys() = default;
  /// Reads: a key that is there goes to its member. ConfigError names a key of a wrong type. `ordered`: the same keys
  /// with their objects in the order in which they were given; null: by name.
  explicit ConfigKeys(const families::ConfigReader& in, const nlohmann::ordered_json* ordered = nullptr)
      : in_(&in), ordered_(ordered) {}

  void flag(const std::string& key, bool& value);
  void integer(const std::string& key, std::int64_t& value);
  /// 0 is null.
  void optional_integer(const std::string& key, std::int64_t& value);
  void number(const std::string& key, double& value);
  /// A number that Python users give as a whole one; it is written so where it is.
  void whole_number(const std::string& key, double& value);
  /// Empty is null.
  void text(const std::string& key, std::string& value);
  /// True, false or a word.
  void flag_or_word(const std::string& key, std::string& value);
  /// A list or a single one; empty is null.
  void names(const std::string& key, std::vector<std::string>& values);
  void integers(const std::string& key, std::vector<std::int64_t>& values);
  /// A list of names, or one regular expression.
  void names_or_regex(const std::string& key, std::vector<std::string>& values, std::string& regex);
  /// Here null is not the same as an empty list.
  void names_or_regex(const std::string& key, std::optional<std::vector<std::string>>& values, std::string& regex);
  /// An object of numbers, in its order: the first pattern that matches a name counts.
  void pattern(const std::string& key, std::vector<std::pair<std::string, std::int64_t>>& values);
  void pattern(const std::string& key, std::vector<std::pair<std::string, double>>& values);
  /// As it stands; unset: null.
  void any(const std::string& key, nlohmann::json& value);
  /// Written as `neutral`; read, another value would change the computation: ConfigError.
  void unsupported(const std::string& key, const nlohmann::json& neutral);
  /// Written as `value`; what is read does not matter.
  void ignored(const std::string& key, const nlohmann::json& value);

  nlohmann::ordered_json document() const;

 private:
  bool has(const std::string& key) const { return in_->has(key); }
  template <class T>
  void read_or_write(const std::string& key, std::vector<std::pair<std::string, T>>& values);
  const families::ConfigReader* in_ = nullptr;
  const nlohmann::ordered_json* ordered_ = nullptr;
  nlohmann::json out_ = nlohmann::json::object();
  nlohmann::ordered_json patterns_ = nlohmann::ordered_json::object();  // of out_
};

}  // namespace tessera::peft
