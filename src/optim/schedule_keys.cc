#include "optim/schedule_keys.h"

#include <algorithm>

#include "base/json_text.h"
#include "base/nearest.h"
#include "tessera/base/error.h"

namespace tessera::optim {

ScheduleKeys::ScheduleKeys(const std::string& json, std::string schedule) : schedule_(std::move(schedule)) {
  values_ = json.empty() ? nlohmann::json::object() : nlohmann::json::parse(json, nullptr, false);
  if (!values_.is_object())
    throw ConfigError("lr_scheduler_kwargs: expected a JSON object such as {\"num_cycles\": 2}, found '" + json + "'",
                      "lr_scheduler_kwargs");
}

const nlohmann::json* ScheduleKeys::find(const char* key) {
  known_.insert(key);
  const auto found = values_.find(key);
  return found == values_.end() || found->is_null() ? nullptr : &*found;
}

void ScheduleKeys::reject(const char* key, const std::string& expected, const nlohmann::json& found) const {
  fail("expected " + expected + " for '" + key + "', found " + json_text(found));
}

void ScheduleKeys::fail(const std::string& message) const {
  throw ConfigError("lr_scheduler_kwargs of '" + schedule_ + "': " + message, "lr_scheduler_kwargs");
}

std::optional<double> ScheduleKeys::number(const char* key) {
  const auto* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) reject(key, "a number", *value);
  return value->get<double>();
}

double ScheduleKeys::number(const char* key, double otherwise) {
  return number(key).value_or(otherwise);
}

std::optional<std::int64_t> ScheduleKeys::integer(const char* key) {
  const auto* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number_integer()) reject(key, "an integer", *value);
  return value->get<std::int64_t>();
}

std::string ScheduleKeys::word(const char* key, const std::string& otherwise, const std::vector<std::string>& allowed) {
  const auto* value = find(key);
  if (!value) return otherwise;
  std::string list;
  for (const auto& a : allowed) list += (list.empty() ? "'" : ", '") + a + "'";
  if (!value->is_string() || std::find(allowed.begin(), allowed.end(), value->get<std::string>()) == allowed.end())
    reject(key, "one of " + list, *value);
  return value->get<std::string>();
}

std::vector<std::int64_t> ScheduleKeys::integers(const char* key) {
  const auto* value = find(key);
  if (!value) return {};
  const bool good = value->is_array() && std::all_of(value->begin(), value->end(),
                                                     [](const nlohmann::json& x) { return x.is_number_integer(); });
  if (!good) reject(key, "a list of integers", *value);
  return value->get<std::vector<std::int64_t>>();
}

void ScheduleKeys::check_all_taken() const {
  const std::vector<std::string> known(known_.begin(), known_.end());
  std::string list;
  for (const auto& k : known) list += (list.empty() ? "" : ", ") + k;
  for (const auto& [key, value] : values_.items())
    if (!known_.contains(key))
      fail("unknown key '" + key + "'" + did_you_mean(key, known) + "; " +
           (list.empty() ? "it takes none" : "it takes " + list));
}

}  // namespace tessera::optim
