#pragma once
// Changes of a JSON document that leave it one: what a reader makes of members, types and numbers, not of commas.
#include <array>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "fuzz/mutate.h"

namespace tessera::fuzz {

using Json = nlohmann::ordered_json;

/// Nothing for what is no JSON, or is nested so deep that copies would fill the stack.
inline std::optional<Json> as_json(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == ']' || c == '}') --depth;
    if ((c == '[' || c == '{') && ++depth > 100) return std::nullopt;
  }
  auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? std::nullopt : std::optional(std::move(json));
}

inline std::string as_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

inline std::vector<Json*> nodes_of(Json& root) {
  std::vector<Json*> nodes{&root};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i]->is_structured()) continue;
    for (auto& child : *nodes[i]) nodes.push_back(&child);
  }
  return nodes;
}

inline Json any_number(Random& random) {
  using Limits = std::numeric_limits<std::int64_t>;
  static const std::array<Json, 16> numbers{0,
                                            1,
                                            2,
                                            -1,
                                            3,
                                            8,
                                            255,
                                            256,
                                            65536,
                                            2147483647,
                                            1 << 30,
                                            Limits::max(),
                                            Limits::min(),
                                            std::uint64_t{1} << 63,
                                            0.5,
                                            1e308};
  return numbers[random.below(numbers.size())];
}

inline void change_scalar(Json& node, Random& random) {
  if (node.is_string() && !random.one_in(8)) {
    node = changed_bytes(node.get<std::string>());
  } else if (node.is_number_integer() && random.one_in(2)) {
    node = static_cast<std::int64_t>(node.get<std::uint64_t>() + (random.one_in(2) ? 1u : ~std::uint64_t{0}));
  } else if (node.is_boolean() && !random.one_in(4)) {
    node = !node.get<bool>();
  } else {
    const std::array<Json, 6> values{nullptr, true, "", Json::array(), Json::object(), any_number(random)};
    node = random.one_in(2) ? any_number(random) : values[random.below(values.size())];
  }
}

/// A key of another object of the document, or any.
inline std::string any_key(Json& root, Random& random) {
  std::vector<std::string> keys;
  for (Json* node : nodes_of(root)) {
    if (!node->is_object()) continue;
    for (const auto& member : node->items()) keys.push_back(member.key());
  }
  std::string key = keys.empty() ? "a" : keys[random.below(keys.size())];
  return random.one_in(4) ? changed_bytes(std::move(key)) : key;
}

inline void add_child(Json& root, Json& node, Json child, Random& random) {
  if (node.is_array())
    node.insert(node.begin() + static_cast<std::ptrdiff_t>(random.below(node.size() + 1)), std::move(child));
  else if (node.is_object())
    node[any_key(root, random)] = std::move(child);
  else
    node = std::move(child);
}

inline void remove_child(Json& node, Random& random) {
  if (!node.is_structured() || node.empty()) return;
  node.erase(std::next(node.begin(), static_cast<std::ptrdiff_t>(random.below(node.size()))));
}

/// One change; parts of `other` may come in.
inline void change_json(Json& root, Json& other, Random& random) {
  const auto nodes = nodes_of(root), others = nodes_of(other);
  Json& node = *nodes[random.below(nodes.size())];
  Json part = *others[random.below(others.size())];
  switch (random.below(8)) {
    case 0:
      node = std::move(part);
      return;
    case 1:
      return add_child(root, node, std::move(part), random);
    case 2:
      return remove_child(node, random);
    case 3:
      node = Json::array({Json(node)});
      return;
    default:
      return change_scalar(node, random);
  }
}

inline std::optional<std::string> changed_json(std::string_view text, Random& random) {
  auto json = as_json(text);
  if (!json) return std::nullopt;
  Json copy = *json;
  for (bool more = true; more; more = random.one_in(2)) change_json(*json, copy, random);
  return as_text(*json);
}

/// The first document with a part of the second.
inline std::optional<std::string> crossed_json(std::string_view first, std::string_view second, Random& random) {
  auto json = as_json(first), other = as_json(second);
  if (!json || !other) return std::nullopt;
  const auto nodes = nodes_of(*json), others = nodes_of(*other);
  Json part = *others[random.below(others.size())];
  add_child(*json, *nodes[random.below(nodes.size())], std::move(part), random);
  return as_text(*json);
}

}  // namespace tessera::fuzz
