#include "models/check_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/json_text.h"
#include "families/families.h"
#include "formats/weight_names.h"
#include "models/names_in_files.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::models {
namespace {

using Shape = std::vector<std::int64_t>;
using Shapes = std::map<std::string, Shape>;  // by parameter

std::string shown(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Shapes shapes_of(const nlohmann::json& json, const std::string& file) {
  Shapes out;
  for (auto& p : families::parameters_of(families::blueprint_of(families::parse_config(json, file))))
    out.emplace(std::move(p.name), std::move(p.shape));
  return out;
}

/// "model.layers.7.mlp" -> "model.layers.#.mlp"
std::string without_numbers(const std::string& name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    const bool in_number = digit && (out.ends_with('.') || out.ends_with('#'));
    if (!in_number) {
      out += name[i];
    } else if (!out.ends_with('#')) {
      out += '#';
    }
  }
  return out;
}

/// Other values of a key: half of it, twice, and as many as a tensor's name counts.
std::vector<std::int64_t> others_of(std::int64_t value, const std::string& name) {
  std::vector<std::int64_t> out = {value / 2, value * 2};
  for (std::size_t i = 0; i < name.size();) {
    std::size_t digits = 0;
    while (i + digits < name.size() && std::isdigit(static_cast<unsigned char>(name[i + digits]))) ++digits;
    if (digits > 0 && digits < 7) out.push_back(std::stoll(name.substr(i, digits)) + 1);
    i += digits + 1;
  }
  return out;
}

/// The keys on which a parameter depends, with their values: others change its shape, or whether there is one.
std::string keys_behind(const nlohmann::json& json, const std::string& file, const std::string& parameter) {
  const auto shape_in = [&](const nlohmann::json& config) {
    const auto shapes = shapes_of(config, file);
    const auto it = shapes.find(parameter);
    return it == shapes.end() ? Shape() : it->second;
  };
  const Shape shape = shape_in(json);
  const auto is_behind = [&](const std::string& key, std::int64_t value) {
    auto changed = json;
    changed[key] = value;
    try {
      return shape_in(changed) != shape;
    } catch (const ConfigError&) {  // it does not go with the others
      return false;
    }
  };
  std::vector<std::string> found;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1) continue;
    const auto others = others_of(value.get<std::int64_t>(), parameter);
    if (std::any_of(others.begin(), others.end(), [&, &name = key](std::int64_t v) { return is_behind(name, v); }))
      found.push_back(fmt::format("{} {}", key, json_text(value)));
  }
  return found.empty() ? "the family's defaults" : fmt::format("{}", fmt::join(found, ", "));
}

[[noreturn]] void refuse(const nlohmann::json& json, const std::string& file, const std::string& parameter,
                         const std::string& what) {
  const auto keys = keys_behind(json, file, parameter);
  throw ConfigError(fmt::format("{} ({}): {}; config.json and the weights do not belong together", file, keys, what),
                    keys.substr(0, keys.find(' ')));
}

/// Such a file has one model's tensors and no more. Folders may have heads that a task does not use.
bool is_of_gguf(const io::TensorInfo& info) {
  return info.file.ends_with(".gguf");
}

}  // namespace

void check_sizes(const std::string& folder, const io::TensorSource& source) {
  const std::string file = folder + "/config.json";
  const auto json = read_described_config(folder);
  const auto shapes = shapes_of(json, file);
  std::vector<std::string> parameters;
  for (const auto& [name, shape] : shapes) parameters.push_back(name);
  const NamesInFiles names(parameters);
  std::set<std::string> kinds_there;
  for (const auto& info : source.tensors()) kinds_there.insert(without_numbers(info.name));
  std::set<std::string> used;
  std::set<std::string> kinds_read;
  for (const auto& [name, shape] : shapes) {
    const auto stored = names.in(source, name);
    if (stored.empty()) {
      if (without_numbers(name) == name || !kinds_there.contains(without_numbers(name))) continue;
      refuse(json, file, name,
             fmt::format("tensor '{}' {} is not among the weights of {}, which have others of its kind", name,
                         shown(shape), source.tensors().front().file));
    }
    const auto& info = *source.find(stored);
    const bool is_packed_conv1d = info.packed_bytes > 0 && info.shape == Shape(shape.rbegin(), shape.rend());
    if (info.shape != shape && !is_packed_conv1d)
      refuse(
          json, file, name,
          fmt::format("tensor '{}' would be {}, in {} it is {}", stored, shown(shape), info.file, shown(info.shape)));
    used.insert(stored);
    kinds_read.insert(without_numbers(stored));
  }
  const bool has_head = shapes.contains("lm_head.weight") || shapes.contains("embed_out.weight");
  for (const auto& info : source.tensors()) {
    if (used.contains(info.name)) continue;
    if (kinds_read.contains(without_numbers(info.name)))
      refuse(
          json, file, info.name,
          fmt::format("tensor '{}' {} in {} is one more than the model has", info.name, shown(info.shape), info.file));
    if (is_of_gguf(info) && !is_ignorable_weight(info.name, has_head))
      throw DataError(fmt::format("{}: tensor '{}' {} (its name in a Hugging Face folder) is not one of the model that "
                                  "the file's keys describe; without it the model would compute other values",
                                  info.file, info.name, shown(info.shape)),
                      info.file);
  }
}

}  // namespace tessera::models
