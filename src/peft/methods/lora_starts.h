#pragma once
// First values of LoRA that are more than a draw of every number.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tensor/rng.h"

namespace tessera::peft {

/// [rows, columns] float32, normal.
at::Tensor normal_matrix(std::int64_t rows, std::int64_t columns, tensor::RandomKey key);

/// Every second row, from `first` on, of an orthogonal [rank, rank] matrix.
at::Tensor orthogonal_rows(std::int64_t rank, tensor::RandomKey key, std::int64_t first);

/// The largest singular values s [rank] of W [out, in], and their vectors u [out, rank] and vh [rank, in].
struct SingularParts {
  at::Tensor u, s, vh;
};
SingularParts largest_parts(const at::Tensor& w, std::int64_t rank);
/// As torch.svd_lowrank: by `rounds` of subspace iteration (Halko et al. 2009) from a start [the smaller side, rank].
SingularParts nearly_largest_parts(const at::Tensor& w, const at::Tensor& start, std::int64_t rounds);

/// A [rank, in] and B [out, rank] that stand for a part of W [out, in].
struct LoraStart {
  at::Tensor a, b;
};

/// how: "pissa" (the largest singular values, divided by the scaling) or "olora" (the QR decomposition).
LoraStart decomposed(const at::Tensor& w, const std::string& how, std::int64_t rank, double scaling);

/// As "pissa", of nearly_largest_parts() from a drawn start.
LoraStart nearly_decomposed(const at::Tensor& w, std::int64_t rank, double scaling, std::int64_t rounds,
                            tensor::RandomKey key);

/// MiCA: B of the smallest singular values, and no A.
LoraStart minor_components(const at::Tensor& w, std::int64_t rank);

/// ConfigError where loftq_config asks for what is not here.
void check_loftq(const nlohmann::json& config);

}  // namespace tessera::peft
