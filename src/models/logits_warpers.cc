// The filters of sampling, on one row at a time; a row's tokens are sorted once for each filter that needs an order.
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "models/logits_processors.h"

namespace tessera::models {
namespace {

std::vector<float> softmax(const float* row, std::int64_t n) {
  const float top = *std::max_element(row, row + n);
  std::vector<float> p(static_cast<std::size_t>(n));
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += p[i] = std::exp(row[i] - top);
  for (auto& v : p) v /= sum;
  return p;
}

template <class Less>
std::vector<std::int64_t> order_by(std::int64_t n, const Less& less) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    if (less(a, b)) return true;
    return less(b, a) ? false : a < b;
  });
  return order;
}

float entropy(const std::vector<float>& p) {
  float sum = 0;
  for (float v : p) {
    if (v > 0) sum -= v * std::log(v);
  }
  return sum;
}

float nth_largest(const float* row, std::int64_t n, std::int64_t k) {
  std::vector<float> sorted(row, row + n);
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<>());
  return sorted[k - 1];
}

void keep_top_k(float* row, std::int64_t n, std::int64_t k) {
  if (k >= n) return;
  const float least = nth_largest(row, n, k);
  for (std::int64_t i = 0; i < n; ++i) {
    if (row[i] < least) row[i] = kRemoved;
  }
}

// Nucleus sampling (Holtzman et al. 2020): from the unlikeliest on, tokens whose mass together is at most 1 - p go.
void keep_top_p(float* row, std::int64_t n, double p, std::int64_t keep) {
  const auto probabilities = softmax(row, n);
  const auto order = order_by(n, [&](std::int64_t a, std::int64_t b) { return row[a] < row[b]; });
  float mass = 0;
  for (std::int64_t i = 0; i + keep < n; ++i) {
    mass += probabilities[order[i]];
    if (mass <= static_cast<float>(1.0 - p)) row[order[i]] = kRemoved;
  }
}

void keep_min_p(float* row, std::int64_t n, double min_p, std::int64_t keep) {
  const auto probabilities = softmax(row, n);
  const float least = static_cast<float>(min_p) * *std::max_element(probabilities.begin(), probabilities.end());
  const auto order = order_by(n, [&](std::int64_t a, std::int64_t b) { return row[a] > row[b]; });
  for (std::int64_t i = keep; i < n; ++i) {
    if (probabilities[order[i]] < least) row[order[i]] = kRemoved;
  }
}

// Locally typical sampling (Meister et al. 2022).
void keep_typical(float* row, std::int64_t n, double mass, std::int64_t keep) {
  const auto probabilities = softmax(row, n);
  const float expected = entropy(probabilities);
  std::vector<float> distance(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) distance[i] = std::abs(-std::log(probabilities[i]) - expected);
  const auto order = order_by(n, [&](std::int64_t a, std::int64_t b) { return distance[a] < distance[b]; });
  float sum = 0;
  std::int64_t last = 0;
  for (; last < n; ++last) {
    sum += probabilities[order[last]];
    if (!(sum < static_cast<float>(mass))) break;
  }
  const float limit = distance[order[std::min(last, n - 1)]];
  for (std::int64_t i = keep; i < n; ++i) {
    if (distance[order[i]] > limit) row[order[i]] = kRemoved;
  }
}

void keep_above(float* row, std::int64_t n, const std::vector<float>& probabilities, float least, std::int64_t keep) {
  const float bound = nth_largest(row, n, std::min(keep, n));
  for (std::int64_t i = 0; i < n; ++i) {
    if (probabilities[i] < least && row[i] < bound) row[i] = kRemoved;
  }
}

// Truncation sampling (Hewitt et al. 2022): an absolute cutoff, and one that follows the entropy.
void keep_epsilon(float* row, std::int64_t n, double epsilon, std::int64_t keep) {
  keep_above(row, n, softmax(row, n), static_cast<float>(epsilon), keep);
}

void keep_eta(float* row, std::int64_t n, double epsilon, std::int64_t keep) {
  const auto probabilities = softmax(row, n);
  const auto e = static_cast<float>(epsilon);
  keep_above(row, n, probabilities, std::min(e, std::sqrt(e) * std::exp(-entropy(probabilities))), keep);
}

}  // namespace

void warp_scores(at::Tensor scores, const GenerationConfig& config) {
  if (config.temperature != 1.0) scores.div_(config.temperature);
  const std::int64_t n = scores.size(1), keep = config.min_tokens_to_keep;
  for (std::int64_t r = 0; r < scores.size(0); ++r) {
    float* row = scores.mutable_data_ptr<float>() + r * n;
    if (config.top_k > 0) keep_top_k(row, n, std::max(config.top_k, keep));
    if (config.top_p < 1.0) keep_top_p(row, n, config.top_p, keep);
    if (config.min_p) keep_min_p(row, n, *config.min_p, keep);
    if (config.typical_p < 1.0) keep_typical(row, n, config.typical_p, keep);
    if (config.epsilon_cutoff > 0) keep_epsilon(row, n, config.epsilon_cutoff, keep);
    if (config.eta_cutoff > 0) keep_eta(row, n, config.eta_cutoff, keep);
  }
  if (config.renormalize_logits) scores.copy_(at::log_softmax(scores, -1));
}

}  // namespace tessera::models
