#include "verify/comparison.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/json_text.h"
#include "tessera/base/error.h"

namespace tessera::verify {
namespace {

std::string shape_text(const at::Tensor& t) {
  return fmt::format("[{}]", fmt::join(t.sizes().begin(), t.sizes().end(), ", "));
}

double largest(const at::Tensor& t) {
  return t.numel() == 0 ? 0.0 : t.abs().max().item<double>();
}

}  // namespace

bool Comparison::Row::ok() const {
  return note.empty() && difference <= tolerance;
}  // false for NaN

void Comparison::add(const std::string& name, const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  if (!actual.defined()) return fail(name, "was not computed");
  if (actual.sizes() != expected.sizes()) {
    return fail(name, "has shape " + shape_text(actual) + ", the reference " + shape_text(expected));
  }
  const at::Tensor e = expected.to(at::kDouble);
  const double scale = std::max(largest(e), 1e-30);
  rows_.push_back({name, largest(actual.to(at::kDouble) - e) / scale, tolerance, {}});
}

void Comparison::add(const std::string& name, double actual, double expected, double tolerance) {
  rows_.push_back({name, std::abs(actual - expected) / std::max(std::abs(expected), 1e-30), tolerance, {}});
}

void Comparison::add_scores(const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                            double tolerance) {
  constexpr double kExcluded = -std::numeric_limits<double>::infinity();
  const at::Tensor kept = expected.ne(kExcluded);
  if (actual.sizes() != expected.sizes() || !at::equal(kept, actual.ne(kExcluded)))
    return fail(name, "excludes other tokens, or has another shape");
  add(name, actual.masked_select(kept), expected.masked_select(kept), tolerance);
}

void Comparison::add_weights(const std::string& name, const at::Tensor& actual, const at::Tensor& expected,
                             double tolerance, double limit, const at::Tensor& noise) {
  if (!actual.defined()) return fail(name, "was not computed");
  if (actual.sizes() != expected.sizes()) {
    return fail(name, "has shape " + shape_text(actual) + ", the reference " + shape_text(expected));
  }
  at::Tensor difference = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().flatten();
  const double worst = largest(difference);
  if (!(worst <= limit)) return rows_.push_back({name, worst, limit, {}});
  if (noise.defined() && noise.numel() == difference.numel())  // AdaLoRA's factors lose ranks
    difference = difference.masked_fill(noise.flatten(), 0);
  const auto allowed = difference.numel() / 1000;  // 0.1% of the elements
  difference = std::get<0>(difference.sort());
  const auto at = difference.numel() - 1 - allowed;
  const double kept = at < 0 ? 0 : difference[at].item<double>();  // an adapter without a rank has no elements
  rows_.push_back({name, kept, tolerance, {}});
}

void Comparison::fail(const std::string& name, const std::string& why) {
  rows_.push_back({name, 0, 0, why});
}

void Comparison::fail_unless_zero(const std::string& name, const at::Tensor& actual) {
  if (largest(actual) != 0) fail(name, "is not in the reference");
}

void Comparison::require_count(const std::string& name, std::size_t found, std::int64_t expected) {
  if (static_cast<std::int64_t>(found) != expected)
    fail(name, fmt::format("are {} in the reference, whose settings make {}", found, expected));
}

void Comparison::merge(comm::Communicator& group) {
  nlohmann::json mine = nlohmann::json::array();
  for (const Row& r : rows_) mine.push_back({r.name, std::isfinite(r.difference) ? r.difference : 1e300, r.note});
  for (const auto& bytes : group.all_gather_objects(json_text(mine))) {
    const auto theirs = nlohmann::json::parse(bytes);
    TESSERA_CHECK(theirs.size() == rows_.size(), "every rank compares the same tensors");
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      rows_[i].difference = std::max(rows_[i].difference, theirs[i][1].get<double>());
      if (rows_[i].note.empty()) rows_[i].note = theirs[i][2].get<std::string>();
    }
  }
}

bool Comparison::passed() const {
  return !rows_.empty() && std::all_of(rows_.begin(), rows_.end(), [](const Row& r) { return r.ok(); });
}

void Comparison::print(std::ostream& out) const {
  std::vector<std::string> kinds;
  std::map<std::string, std::pair<const Row*, int>> worst;
  for (const Row& r : rows_) {
    const std::string kind = r.name.substr(0, r.name.find(' '));
    auto [it, fresh] = worst.try_emplace(kind, &r, 0);
    if (fresh) kinds.push_back(kind);
    ++it->second.second;
    if (r.difference / std::max(r.tolerance, 1e-300) >
        it->second.first->difference / std::max(it->second.first->tolerance, 1e-300)) {
      it->second.first = &r;
    }
  }
  for (const auto& kind : kinds) {
    const auto& [row, count] = worst.at(kind);
    if (!row->note.empty()) continue;
    out << fmt::format("  {:<22} {:4} compared   worst {:.2e}   tolerance {:.0e}   {}\n", kind, count, row->difference,
                       row->tolerance, row->name.size() > kind.size() ? row->name.substr(kind.size() + 1) : "");
  }
  for (const Row& r : rows_) {
    if (!r.ok()) {
      out << fmt::format(
          "  FAILED {}: {}\n", r.name,
          r.note.empty() ? fmt::format("differs by {:.3e}, tolerance {:.0e}", r.difference, r.tolerance) : r.note);
    }
  }
}

}  // namespace tessera::verify
