#include "worker/measure_rates.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <ostream>

#include "config/options.h"
#include "nn/ops/gemm.h"

namespace tessera::worker {
namespace {

/// Of one call, the median of those in a fifth of a second, after one that warms up.
double median_seconds(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  call();
  std::vector<double> all;
  const auto first = Clock::now();
  do {
    const auto begin = Clock::now();
    call();
    all.push_back(since(begin));
  } while (since(first) < 0.2);
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

}  // namespace

int measure_rates(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  std::string dtype_name = "float32";
  config::OptionTable table("tessera measure-rates", "measures what a rank's cores do");
  table.add(&dtype_name, {"--dtype"}, "of matrix products").choices({"float32", "bfloat16"});
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  constexpr std::int64_t kSize = 1024, kNumel = 16 << 20;
  const auto dtype = dtype_name == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const auto a = at::randn({kSize, kSize}).to(dtype), b = at::randn({kSize, kSize}).to(dtype);
  const auto from = at::ones({kNumel}), to = at::ones({kNumel});
  const double product = median_seconds([&] { (void)nn::gemm(a, b.t()); }),
               copy = median_seconds([&] { to.copy_(from); });
  out << fmt::format("{:.6g} {:.6g}\n", 2.0 * kSize * kSize * kSize / product, 2.0 * 4 * kNumel / copy);
  return 0;
}

}  // namespace tessera::worker
