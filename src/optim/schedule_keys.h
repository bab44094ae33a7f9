#pragma once
// lr_scheduler_kwargs: a JSON object whose keys a schedule takes one by one.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera::optim {

class ScheduleKeys {
 public:
  /// ConfigError for text that is not a JSON object.
  ScheduleKeys(const std::string& json, std::string schedule);

  double number(const char* key, double otherwise);
  std::optional<double> number(const char* key);
  std::optional<std::int64_t> integer(const char* key);
  std::string word(const char* key, const std::string& otherwise, const std::vector<std::string>& allowed);
  std::vector<std::int64_t> integers(const char* key);

  /// ConfigError for a key that nobody asked for, with the nearest that somebody did.
  void check_all_taken() const;
  [[noreturn]] void fail(const std::string& message) const;

 private:
  const nlohmann::json* find(const char* key);
  [[noreturn]] void reject(const char* key, const std::string& expected, const nlohmann::json& found) const;
  std::string schedule_;
  nlohmann::json values_;
  std::set<std::string> known_;
};

}  // namespace tessera::optim
