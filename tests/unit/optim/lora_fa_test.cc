#include "optim/lora_fa.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tessera::optim {
namespace {

constexpr std::int64_t kOut = 11, kRank = 5;

RowProjection a_projection() {
  RowProjection p{.rank = kRank, .inverse = {}, .scale = 0.25f};
  for (int i = 0; i < kRank * kRank; ++i) p.inverse.push_back(std::sin(static_cast<float>(i)) + (i % 6 == 0 ? 2 : 0));
  return p;
}
at::Tensor gradient(int step) {
  return at::cos(at::arange(kOut * kRank, at::kFloat) * (step + 0.3));
}

/// The whole of B after four steps by ranks that hold these many elements each.
at::Tensor train(const std::vector<std::int64_t>& parts, double weight_decay = 0) {
  const auto start = at::sin(at::arange(kOut * kRank, at::kFloat));
  std::vector<at::Tensor> results(parts.size());
  comm::run_threads(static_cast<int>(parts.size()), [&](auto group) {
    const auto r = static_cast<std::size_t>(group->rank());
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < r; ++i) begin += parts[i];
    auto p = start.narrow(0, begin, parts[r]).clone().set_requires_grad(true);
    const ParameterSlice slice{
        .name = "q.lora_B.default.weight", .shape = {kOut, kRank}, .offset = begin, .numel = parts[r], .parameter = 0};
    LoraFa optimizer({p}, {slice}, {.lr = 0.1, .weight_decay = weight_decay}, group);
    optimizer.set_projections({{slice.name, a_projection()}});
    for (int step = 0; step < 4; ++step) {
      p.mutable_grad() = gradient(step).narrow(0, begin, parts[r]).clone();
      optimizer.step();
    }
    results[r] = p.detach();
  });
  return at::cat(results);
}

TEST(LoraFa, FollowsTheDefinition) {
  const double lr = 0.1, decay = 0.2;
  const auto p = a_projection();
  const auto inverse = at::tensor(at::ArrayRef<float>(p.inverse)).view({kRank, kRank});
  auto b = at::sin(at::arange(kOut * kRank, at::kFloat)).view({kOut, kRank}), m = at::zeros_like(b), v = m.clone();
  for (int t = 1; t <= 4; ++t) {
    const auto g = (at::matmul(gradient(t - 1).view({kOut, kRank}).to(at::kBFloat16), inverse.to(at::kBFloat16)) * 0.25)
                       .to(at::kFloat);
    m = m * 0.9 + g * 0.1;
    v = v * 0.999 + g * g * 0.001;
    const double rate = lr * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
    b = b - rate * m / (v.sqrt() + 1e-6);
    b = b - lr * decay * b;
  }
  EXPECT_LE((train({kOut * kRank}, decay).view({kOut, kRank}) - b).abs().max().item<float>(), 2e-3);
}

TEST(LoraFa, RowsThatAreSplitOverRanksHaveTheSameBits) {
  const auto whole = train({kOut * kRank});
  for (const std::vector<std::int64_t>& parts :
       std::vector<std::vector<std::int64_t>>{{25, 30}, {16, 39}, {1, 2, 52}, {0, 33, 22}, {7, 1, 1, 46}})
    EXPECT_TRUE(at::equal(whole, train(parts))) << parts.size() << ' ' << parts[0];
}

}  // namespace
}  // namespace tessera::optim
