#include "fsdp/grads/grad_norm.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "fsdp/grads/square_sum.h"
#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

constexpr std::int64_t kChunk = 1 << 16;
constexpr std::int64_t kLanes = 8;  // of a sum: the same order of additions for every vector width

template <class Lanes>
double total(const Lanes& lanes) {
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/// Sum of term(x[i]).
template <class T, class Term>
double sum_of(const T* x, std::int64_t n, Term term) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) lanes[j] += term(static_cast<double>(x[i + j]));
  for (int j = 0; i < n; ++i, ++j) lanes[j] += term(static_cast<double>(x[i]));
  return total(lanes);
}

template <class T>
double power_sum(const T* x, std::int64_t n, double p) {
  if constexpr (std::is_same_v<T, float>) {
    if (p == 2.0) return sum_of_squares(x, n);
  }
  if (p == 2.0) return sum_of(x, n, [](double v) { return v * v; });
  if (p == 1.0) return sum_of(x, n, [](double v) { return std::abs(v); });
  return sum_of(x, n, [p](double v) { return std::pow(std::abs(v), p); });
}

template <class T>
double max_magnitude(const T* x, std::int64_t n) {
  double largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto v = std::abs(static_cast<double>(x[i]));
    if (!(v <= largest)) largest = v;  // a NaN stays
    if (std::isnan(v)) return v;
  }
  return largest;
}

double combine(double a, double b, bool infinite) {
  if (!infinite) return a + b;
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN() : std::max(a, b);
}

/// Of gradients on another device, in double; waits for the device once.
double part_on_device(const std::vector<at::Tensor>& grads, double p) {
  std::vector<at::Tensor> norms;
  for (const auto& g : grads)
    norms.push_back(at::linalg_vector_norm(g, p, {}, false, g.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  const auto all = at::stack(norms).to(at::kDouble);
  return (std::isinf(p) ? all.amax() : all.pow(p).sum()).item<double>();
}

double local_part(const at::Tensor& grad, double p) {
  const bool infinite = std::isinf(p);
  const auto n = grad.numel(), chunks = (n + kChunk - 1) / kChunk;
  std::vector<double> partial(static_cast<std::size_t>(chunks));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, grad.scalar_type(), "grad_norm", [&] {
    const auto* data = grad.const_data_ptr<scalar_t>();
    at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto c = begin; c < end; ++c) {
        const auto count = std::min(kChunk, n - c * kChunk);
        partial[static_cast<std::size_t>(c)] =
            infinite ? max_magnitude(data + c * kChunk, count) : power_sum(data + c * kChunk, count, p);
      }
    });
  });
  double result = 0;
  for (double x : partial) result = combine(result, x, infinite);
  return result;
}

}  // namespace

double global_norm(const std::vector<at::Tensor>& grads, double p, comm::Communicator& group) {
  if (!(p > 0)) throw ConfigError("clip_grad_norm: expected p > 0, found " + std::to_string(p));
  const bool infinite = std::isinf(p);
  double mine = 0;
  std::vector<at::Tensor> elsewhere;
  for (const auto& g : grads) {
    if (!g.defined()) continue;
    if (g.is_cpu())
      mine = combine(mine, local_part(g, p), infinite);
    else
      elsewhere.push_back(g);
  }
  if (!elsewhere.empty()) mine = part_on_device(elsewhere, p);
  comm::Bytes packed(sizeof mine, '\0');
  std::memcpy(packed.data(), &mine, sizeof mine);
  double total = 0;
  for (const auto& other : group.all_gather_objects(packed)) {  // in rank order
    double x = 0;
    std::memcpy(&x, other.data(), sizeof x);
    total = combine(total, x, infinite);
  }
  return infinite ? total : p == 2.0 ? std::sqrt(total) : std::pow(total, 1.0 / p);
}

void scale_in_place(const std::vector<at::Tensor>& grads, double factor) {
  at::NoGradGuard no_grad;
  for (auto g : grads)
    if (g.defined()) g.mul_(factor);
}

}  // namespace tessera::fsdp
