#pragma once
// The tensors in what a module takes and returns. For structs of tensors a free function beside them does it, which
// argument-dependent lookup finds: void collect_tensors(T&, std::vector<at::Tensor*>& out). `out` keeps the order.
#include <ATen/core/Tensor.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::nn {

inline void collect_tensors(at::Tensor& t, std::vector<at::Tensor*>& out) {
  out.push_back(&t);
}
/// Numbers, flags and names beside the tensors.
template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::string>)
void collect_tensors(T&, std::vector<at::Tensor*>&) {}

// All are declared first: they may be nested in any order.
template <class T>
void collect_tensors(std::vector<T>& ts, std::vector<at::Tensor*>& out);
template <class T, std::size_t N>
void collect_tensors(std::array<T, N>& ts, std::vector<at::Tensor*>& out);
template <class T>
void collect_tensors(std::optional<T>& t, std::vector<at::Tensor*>& out);
template <class A, class B>
void collect_tensors(std::pair<A, B>& ts, std::vector<at::Tensor*>& out);
template <class... Ts>
void collect_tensors(std::tuple<Ts...>& ts, std::vector<at::Tensor*>& out);
template <class Key, class T, class... More>
void collect_tensors(std::map<Key, T, More...>& ts, std::vector<at::Tensor*>& out);
/// In the order of the keys.
template <class Key, class T, class... More>
void collect_tensors(std::unordered_map<Key, T, More...>& ts, std::vector<at::Tensor*>& out);

template <class T>
void collect_tensors(std::vector<T>& ts, std::vector<at::Tensor*>& out) {
  if constexpr (!std::same_as<T, bool>)
    for (auto& t : ts) collect_tensors(t, out);
}
template <class T, std::size_t N>
void collect_tensors(std::array<T, N>& ts, std::vector<at::Tensor*>& out) {
  for (auto& t : ts) collect_tensors(t, out);
}
template <class T>
void collect_tensors(std::optional<T>& t, std::vector<at::Tensor*>& out) {
  if (t) collect_tensors(*t, out);
}
template <class A, class B>
void collect_tensors(std::pair<A, B>& ts, std::vector<at::Tensor*>& out) {
  collect_tensors(ts.first, out);
  collect_tensors(ts.second, out);
}
template <class... Ts>
void collect_tensors(std::tuple<Ts...>& ts, std::vector<at::Tensor*>& out) {
  std::apply([&](auto&... t) { (collect_tensors(t, out), ...); }, ts);
}
template <class Key, class T, class... More>
void collect_tensors(std::map<Key, T, More...>& ts, std::vector<at::Tensor*>& out) {
  for (auto& [key, t] : ts) collect_tensors(t, out);
}
template <class Key, class T, class... More>
void collect_tensors(std::unordered_map<Key, T, More...>& ts, std::vector<at::Tensor*>& out) {
  std::map<Key, T*> ordered;
  for (auto& [key, t] : ts) ordered.emplace(key, &t);
  for (auto& [key, t] : ordered) collect_tensors(*t, out);
}

}  // namespace tessera::nn
