#pragma once
// Means of named numbers over the batches that had them, in the order in which the names came.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/presentation.h"

namespace tessera::train {

class MetricMeans {
 public:
  void add(const Metrics& metrics) {
    for (const auto& [name, value] : metrics) {
      Entry& entry = entry_of(name);
      entry.sum += value;
      ++entry.count;
    }
  }
  Metrics values() const {
    Metrics out;
    for (const auto& e : entries_) out.emplace_back(e.name, e.sum / static_cast<double>(e.count));
    return out;
  }
  /// [["name", sum, count], ...]
  nlohmann::json to_json() const {
    auto out = nlohmann::json::array();
    for (const auto& e : entries_) out.push_back({e.name, e.sum, e.count});
    return out;
  }
  static MetricMeans from_json(const nlohmann::json& json) {
    MetricMeans out;
    for (const auto& e : json)
      out.entries_.push_back({e.at(0).get<std::string>(), e.at(1).get<double>(), e.at(2).get<std::int64_t>()});
    return out;
  }

 private:
  struct Entry {
    std::string name;
    double sum = 0;
    std::int64_t count = 0;
  };
  Entry& entry_of(const std::string& name) {
    for (auto& entry : entries_)
      if (entry.name == name) return entry;
    entries_.push_back({.name = name});
    return entries_.back();
  }
  std::vector<Entry> entries_;
};

}  // namespace tessera::train
