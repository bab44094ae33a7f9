#include "peft/methods/lora_starts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/json_text.h"
#include "tessera/base/error.h"

namespace tessera::peft {

at::Tensor normal_matrix(std::int64_t rows, std::int64_t columns, tensor::RandomKey key) {
  const auto out = at::empty({rows, columns}, at::TensorOptions().dtype(at::kFloat));
  tensor::fill_normal(out, key, 0.0, 1.0);
  return out;
}

at::Tensor orthogonal_rows(std::int64_t rank, tensor::RandomKey key, std::int64_t first) {
  const auto q = std::get<0>(at::linalg_qr(normal_matrix(rank, rank, key)));
  return q.slice(0, first, std::nullopt, 2);
}

SingularParts largest_parts(const at::Tensor& w, std::int64_t rank) {
  const auto [u, s, vh] = at::linalg_svd(w, /*full_matrices=*/false);
  return {u.narrow(1, 0, rank), s.narrow(0, 0, rank), vh.narrow(0, 0, rank)};
}

SingularParts nearly_largest_parts(const at::Tensor& w, const at::Tensor& start, std::int64_t rounds) {
  const bool turned = w.size(0) < w.size(1);
  const auto m = turned ? w.t() : w;
  const auto basis = [](const at::Tensor& t) { return std::get<0>(at::linalg_qr(t)); };
  auto q = basis(at::mm(m, start));
  for (std::int64_t i = 0; i < rounds; ++i) q = basis(at::mm(m, basis(at::mm(m.t(), q))));
  const auto [u, s, vh] = at::linalg_svd(at::mm(q.t(), m), /*full_matrices=*/false);
  const auto left = at::mm(q, u);
  return turned ? SingularParts{vh.t(), s, left.t()} : SingularParts{left, s, vh};
}

namespace {

LoraStart divided(const SingularParts& parts, double scaling) {
  const auto root = at::sqrt(parts.s / scaling);
  return {root.unsqueeze(1) * parts.vh, parts.u * root};
}

}  // namespace

LoraStart decomposed(const at::Tensor& w, const std::string& how, std::int64_t rank, double scaling) {
  if (how == "olora") {
    const auto [q, r] = at::linalg_qr(w);
    return {r.narrow(0, 0, rank).contiguous(), q.narrow(1, 0, rank).contiguous()};
  }
  return divided(largest_parts(w, rank), scaling);
}

LoraStart nearly_decomposed(const at::Tensor& w, std::int64_t rank, double scaling, std::int64_t rounds,
                            tensor::RandomKey key) {
  const auto side = std::min(w.size(0), w.size(1));
  return divided(nearly_largest_parts(w, normal_matrix(side, rank, key), rounds), scaling);
}

LoraStart minor_components(const at::Tensor& w, std::int64_t rank) {
  const auto u = std::get<0>(at::linalg_svd(w, /*full_matrices=*/false));
  return {at::zeros({rank, w.size(1)}, w.options()), u.narrow(1, u.size(1) - rank, rank).contiguous()};
}

void check_loftq(const nlohmann::json& config) {
  for (const auto& [key, value] : config.items()) {
    if (key != "loftq_bits" && key != "loftq_iter")
      throw ConfigError("LoRA option 'loftq_config' has the unknown key '" + key + "'", "loftq_config");
    const bool bits = key == "loftq_bits";
    if (value.is_number_integer() && (bits ? value == 4 : value >= 1)) continue;
    throw ConfigError(
        "LoRA option 'loftq_config' takes " + key + (bits ? " 4" : " from 1 on") + ", found " + json_text(value),
        "loftq_config");
  }
}

}  // namespace tessera::peft
