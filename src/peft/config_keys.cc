#include "peft/config_keys.h"

#include <cmath>
#include <type_traits>

#include "base/json_text.h"
#include "tessera/base/error.h"

namespace tessera::peft {
namespace {

using nlohmann::json;

/// One of several values below a key; `where` is its place in the file. JSON's own conversions would cut fractions off.
template <class T>
T item_of(const families::ConfigReader& in, const std::string& key, const std::string& where, const json& value) {
  constexpr bool is_text = std::is_same_v<T, std::string>, is_whole = std::is_integral_v<T>;
  if (is_text ? value.is_string() : is_whole ? value.is_number_integer() : value.is_number())
    return value.template get<T>();
  throw ConfigError(in.file() + ": '" + where + "' must be a " +
                        (is_text    ? "string"
                         : is_whole ? "whole number"
                                    : "number") +
                        ", found " + json_text(value),
                    key);
}

// A list of T, or a single T.
template <class T>
std::vector<T> list_of(const families::ConfigReader& in, const std::string& key) {
  if (!in.has(key)) return {};
  const json& given = in.at(key);
  if (!given.is_array()) return {item_of<T>(in, key, key, given)};
  std::vector<T> out;
  for (const json& value : given)
    out.push_back(item_of<T>(in, key, key + "[" + std::to_string(out.size()) + "]", value));
  return out;
}

json list_or_null(const auto& values) {
  return values.empty() ? json(nullptr) : json(values);
}

// Whole numbers as integers, as Python prints what a user gave.
json as_given(double value) {
  constexpr double kWhole = 0x1p53;  // beyond it every number is whole, and may be no integer
  const bool is_integer = std::abs(value) <= kWhole && value == std::trunc(value);
  return is_integer ? json(static_cast<std::int64_t>(value)) : json(value);
}

}  // namespace

void ConfigKeys::flag(const std::string& key, bool& value) {
  if (!in_) {
    out_[key] = value;
  } else {
    value = in_->get<bool>(key, value);
  }
}

void ConfigKeys::integer(const std::string& key, std::int64_t& value) {
  if (!in_) {
    out_[key] = value;
  } else {
    value = in_->get<std::int64_t>(key, value);
  }
}

void ConfigKeys::optional_integer(const std::string& key, std::int64_t& value) {
  integer(key, value);
  if (!in_ && value == 0) out_[key] = nullptr;
}

void ConfigKeys::number(const std::string& key, double& value) {
  if (!in_) {
    out_[key] = value;
  } else {
    value = in_->get<double>(key, value);
  }
}

void ConfigKeys::whole_number(const std::string& key, double& value) {
  number(key, value);
  if (!in_) out_[key] = as_given(value);
}

void ConfigKeys::text(const std::string& key, std::string& value) {
  if (!in_) {
    out_[key] = value.empty() ? json(nullptr) : json(value);
  } else {
    value = in_->get<std::string>(key, value);
  }
}

void ConfigKeys::flag_or_word(const std::string& key, std::string& value) {
  const bool is_flag = value == "true" || value == "false";
  if (!in_) {
    out_[key] = is_flag ? json(value == "true") : json(value);
  } else if (has(key)) {
    const auto& given = in_->at(key);
    value = given.is_boolean() ? (given.get<bool>() ? "true" : "false") : in_->get<std::string>(key, "");
  }
}

void ConfigKeys::names(const std::string& key, std::vector<std::string>& values) {
  if (!in_) {
    out_[key] = list_or_null(values);
  } else {
    values = list_of<std::string>(*in_, key);
  }
}

void ConfigKeys::integers(const std::string& key, std::vector<std::int64_t>& values) {
  if (!in_) {
    out_[key] = list_or_null(values);
  } else {
    values = list_of<std::int64_t>(*in_, key);
  }
}

void ConfigKeys::names_or_regex(const std::string& key, std::vector<std::string>& values, std::string& regex) {
  if (!in_) {
    out_[key] = regex.empty() ? list_or_null(values) : json(regex);
  } else if (has(key) && in_->at(key).is_string()) {
    regex = in_->get<std::string>(key, "");
  } else {
    values = list_of<std::string>(*in_, key);
  }
}

void ConfigKeys::names_or_regex(const std::string& key, std::optional<std::vector<std::string>>& values,
                                std::string& regex) {
  if (in_ && !has(key)) return;
  std::vector<std::string> names = values.value_or(std::vector<std::string>());
  names_or_regex(key, names, regex);
  if (!in_ && values && regex.empty()) out_[key] = names;
  if (in_ && regex.empty()) values = std::move(names);
}

template <class T>
void ConfigKeys::read_or_write(const std::string& key, std::vector<std::pair<std::string, T>>& values) {
  if (!in_) {
    out_[key] = json::object();  // its place
    patterns_[key] = nlohmann::ordered_json::object();
    for (const auto& [name, value] : values) patterns_[key][name] = as_given(static_cast<double>(value));
    return;
  }
  values.clear();
  if (!has(key)) return;
  const auto& sorted = in_->at(key);
  if (!sorted.is_object()) throw ConfigError(in_->file() + ": key '" + key + "' must be an object", key);
  const auto add = [&](const std::string& name) {
    values.emplace_back(name, item_of<T>(*in_, key, key + "." + name, sorted.at(name)));
  };
  if (ordered_) {
    for (const auto& item : ordered_->at(key).items()) add(item.key());
  } else {
    for (const auto& item : sorted.items()) add(item.key());
  }
}

void ConfigKeys::pattern(const std::string& key, std::vector<std::pair<std::string, std::int64_t>>& values) {
  read_or_write(key, values);
}

void ConfigKeys::pattern(const std::string& key, std::vector<std::pair<std::string, double>>& values) {
  read_or_write(key, values);
}

nlohmann::ordered_json ConfigKeys::document() const {
  nlohmann::ordered_json document = out_;
  for (const auto& [key, pattern] : patterns_.items()) document[key] = pattern;
  return document;
}

void ConfigKeys::any(const std::string& key, json& value) {
  if (!in_) {
    out_[key] = value;
  } else if (has(key)) {
    value = in_->at(key);
  }
}

void ConfigKeys::unsupported(const std::string& key, const json& neutral) {
  if (!in_) {
    out_[key] = neutral;
  } else if (has(key) && in_->at(key) != neutral && in_->at(key) != json(false)) {
    throw ConfigError(in_->file() + ": '" + key + "' is not supported with the value " + json_text(in_->at(key)), key);
  }
}

void ConfigKeys::ignored(const std::string& key, const json& value) {
  if (!in_) {
    out_[key] = value;
  } else {
    has(key);  // known
  }
}

}  // namespace tessera::peft
