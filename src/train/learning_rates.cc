#include "train/learning_rates.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <regex>

#include "config/option_value.h"
#include "tessera/base/error.h"

namespace tessera::train {
namespace {

struct Group {
  std::string pattern;
  std::regex regex;
  double scale = 1;  // of the learning rate
};

[[noreturn]] void fail(const std::string& group, const std::string& what) {
  throw ConfigError(fmt::format("--lr_groups '{}': {}", group, what), "lr_groups");
}

double scale_of(const std::string& group, std::string value, double learning_rate) {
  const bool factor = value.ends_with('x');
  if (factor) value.pop_back();
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 0)
    fail(group, "expected a rate such as 1e-6 or a factor such as 16x behind '=', found '" + value + "'");
  if (factor) return number;
  if (learning_rate == 0 && number > 0)
    fail(group, "a rate of its own needs a --learning_rate above 0, whose schedule it follows");
  return number > 0 ? number / learning_rate : 0;
}

std::vector<Group> parse(const std::string& text, double learning_rate) {
  std::vector<Group> groups;
  for (const auto& word : config::split_words(text)) {
    const auto equals = word.rfind('=');
    if (equals == std::string::npos || equals == 0) fail(word, "expected name=rate, such as lora_B=16x or embed=1e-6");
    Group group{word.substr(0, equals), {}, scale_of(word, word.substr(equals + 1), learning_rate)};
    try {
      group.regex = std::regex(group.pattern);
    } catch (const std::regex_error& e) {
      fail(word, std::string("'") + group.pattern + "' is no regular expression: " + e.what());
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

void apply_groups(const std::vector<Group>& groups, std::vector<optim::ParameterSlice>& slices) {
  std::vector<bool> used(groups.size());
  for (auto& slice : slices)
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!std::regex_search(slice.name, groups[g].regex)) continue;
      slice.lr_scale = groups[g].scale;
      used[g] = true;
      break;
    }
  for (std::size_t g = 0; g < groups.size(); ++g)
    if (!used[g])
      throw ConfigError(fmt::format("--lr_groups: no trained parameter is in the group '{}' (or all are in groups "
                                    "before it); the first trained one is '{}'",
                                    groups[g].pattern, slices.empty() ? "" : slices.front().name),
                        "lr_groups");
}

bool is_in_embedding(const optim::ParameterSlice& slice) {
  return slice.name.find(".lora_embedding_") != std::string::npos;
}

void apply_loraplus(const LearningRates& rates, double learning_rate, std::vector<optim::ParameterSlice>& slices) {
  bool any = false;
  for (auto& slice : slices) {
    any = any || slice.name.find("lora_B") != std::string::npos;
    if (is_in_embedding(slice)) {
      slice.lr_scale = rates.loraplus_lr_embedding / learning_rate;
    } else if (is_fast_in_loraplus(slice)) {
      slice.lr_scale = rates.loraplus_lr_ratio;
    }
  }
  if (!any && !slices.empty())
    throw ConfigError("--loraplus_lr_ratio: no lora_B trains here; LoRA+ is for LoRA and DoRA adapters",
                      "loraplus_lr_ratio");
}

}  // namespace

bool is_fast_in_loraplus(const optim::ParameterSlice& slice) {
  return !is_in_embedding(slice) && (slice.name.find("lora_B") != std::string::npos || slice.shape.size() == 1);
}

void check_learning_rates(const LearningRates& rates, double learning_rate) {
  (void)parse(rates.groups, learning_rate);
  if (rates.loraplus_lr_ratio < 0 || rates.loraplus_lr_embedding < 0)
    throw ConfigError("--loraplus_lr_ratio and --loraplus_lr_embedding must not be negative", "loraplus_lr_ratio");
  if (rates.loraplus_lr_ratio > 0 && learning_rate == 0)
    throw ConfigError("--loraplus_lr_ratio needs a --learning_rate above 0", "loraplus_lr_ratio");
}

void apply_learning_rates(const LearningRates& rates, double learning_rate,
                          std::vector<optim::ParameterSlice>& slices) {
  check_learning_rates(rates, learning_rate);
  if (rates.loraplus_lr_ratio > 0) apply_loraplus(rates, learning_rate, slices);
  apply_groups(parse(rates.groups, learning_rate), slices);
}

}  // namespace tessera::train
