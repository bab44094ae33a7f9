#include "tasks/self_test.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <ostream>
#include <set>

#include "config/options.h"
#include "tasks/fsdp_options.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/nn/block.h"
#include "tessera/optim/optimizer.h"
#include "tessera/tensor/random.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kWidth = 48, kRowsOfRank = 6, kTestSteps = 5;
constexpr const char* kBlockClass = "SelfTestBlock";

struct SelfTestBlock : nn::Layer {
  at::Tensor up = register_parameter("up", at::randn({2 * kWidth, kWidth}) / 7),
             down = register_parameter("down", at::randn({kWidth, 2 * kWidth}) / 10);
  std::string class_name() const override { return kBlockClass; }
  at::Tensor forward_impl(at::Tensor x) override {
    const auto h = at::gelu(at::linear(x.to(up.scalar_type()), up));
    return x + at::linear(h, down);
  }
};

struct SelfTestNet : nn::Layer {
  std::vector<std::shared_ptr<SelfTestBlock>> blocks;
  SelfTestNet() {
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<SelfTestBlock>()));
  }
  std::string class_name() const override { return "SelfTestNet"; }
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& block : blocks) x = (*block)(x);
    return x;
  }
};

/// Losses of some steps, the mean over all rows. `group` takes its ranks' share of the rows that `ranks` ranks have.
std::vector<double> train_small_model(std::shared_ptr<comm::Communicator> group, const fsdp::FsdpOptions& options,
                                      std::int64_t ranks) {
  manual_seed(7);  // the same values on every rank
  SelfTestNet net;
  const auto sharded = fsdp::fully_shard(net, group, options);
  optim::AdamW optimizer(sharded->parameters(), fsdp::parameter_slices(*sharded), {.lr = 1e-2});
  const std::int64_t rows = kRowsOfRank * ranks / group->size();
  std::vector<double> losses;
  for (std::int64_t step = 0; step < kTestSteps; ++step) {
    const auto all =
        at::sin(at::arange(kRowsOfRank * ranks * kWidth).to(at::kFloat) * 0.37 + static_cast<double>(step));
    const auto x = all.reshape({-1, kWidth}).narrow(0, group->rank() * rows, rows);
    const auto loss = (net(x).to(at::kFloat) - x.flip(1)).pow(2).mean();
    loss.backward();
    sharded->clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
    auto sum = at::full({1}, loss.item<double>(), at::kDouble);
    group->all_reduce(sum, comm::ReduceOp::kSum)->wait();
    losses.push_back(sum.item<double>() / group->size());
  }
  return losses;
}

/// Each collective's result against what arithmetic says; names of those that were wrong.
std::vector<std::string> wrong_collectives(comm::Communicator& group) {
  const auto n = static_cast<std::int64_t>(group.size());
  const double mine = group.rank() + 1, sum = static_cast<double>(n * (n + 1) / 2);
  std::vector<std::string> wrong;
  const auto require = [&](const char* name, const at::Tensor& found, const at::Tensor& expected) {
    if (!found.equal(expected)) wrong.emplace_back(name);
  };
  auto reduced = at::full({1000}, mine);
  group.all_reduce(reduced, comm::ReduceOp::kSum)->wait();
  require("all_reduce", reduced, at::full({1000}, sum));
  auto gathered = at::zeros({n * 3});
  group.all_gather(gathered, at::full({3}, mine))->wait();
  require("all_gather", gathered, (at::arange(n).to(at::kFloat) + 1).repeat_interleave(3));
  auto scattered = at::zeros({3});
  group.reduce_scatter(scattered, at::full({n * 3}, mine))->wait();
  require("reduce_scatter", scattered, at::full({3}, sum));
  auto sent = at::full({5}, mine);
  group.broadcast(sent, 0)->wait();
  require("broadcast", sent, at::full({5}, 1.0));
  return wrong;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

class SelfTest {
 public:
  SelfTest(std::shared_ptr<comm::Communicator> group, std::ostream& out) : group_(std::move(group)), out_(out) {}

  bool run() {
    check_ranks();
    check_collectives();
    check_training();
    auto failed = at::full({1}, failed_ ? 1.0 : 0.0);
    group_->all_reduce(failed, comm::ReduceOp::kMax)->wait();
    return failed.item<double>() == 0;
  }

 private:
  void say(bool holds, const std::string& what) {
    failed_ = failed_ || !holds;
    if (group_->rank() == 0 || !holds)
      out_ << fmt::format("{}: {}{}\n", holds ? "ok" : "FAILED", what,
                          holds ? "" : fmt::format(" (rank {})", group_->rank()))
           << std::flush;
  }

  void check_ranks() {
    const auto hosts = group_->all_gather_objects(host_name());
    const std::set<std::string> different(hosts.begin(), hosts.end());
    say(true, fmt::format("{} rank{} on {} host{} ({})", group_->size(), group_->size() == 1 ? "" : "s",
                          different.size(), different.size() == 1 ? "" : "s", group_->backend()));
  }

  void check_collectives() {
    const auto wrong = wrong_collectives(*group_);
    say(wrong.empty(), wrong.empty() ? "collectives" : "collective " + wrong.front());
  }

  void check_training() {
    const auto settings = config::from_environment();
    fsdp::FsdpOptions options = fsdp_options(settings);
    options.device = compute_device("auto", settings, *group_);
    options.ignored_modules = nullptr;  // of the user's model, as the classes
    if (settings.fsdp.auto_wrap_policy == config::WrapPolicy::kTransformerBased)
      options.wrap = fsdp::wrap_classes({kBlockClass});
    const auto together = train_small_model(group_, options, group_->size());
    const auto alone =
        train_small_model(comm::make_solo(), {.wrap = options.wrap, .precision = options.precision}, group_->size());
    double largest = 0;
    for (std::size_t i = 0; i < alone.size(); ++i)
      largest = std::max(largest, std::abs(together[i] - alone[i]) / std::abs(alone[i]));
    const bool is_exact = settings.mixed_precision == config::MixedPrecision::kNo;
    const bool holds = largest < (is_exact ? 1e-5 : 2e-2) && alone.back() < alone.front();
    const std::string strategy = settings.use_fsdp ? config::name_of(settings.fsdp.sharding_strategy) : "replicated";
    say(holds,
        fmt::format("training ({}, mixed precision {}): loss {:.5f} to {:.5f} in {} steps, {} one rank alone (largest "
                    "difference {:.1e})",
                    strategy, config::name_of(settings.mixed_precision), together.front(), together.back(), kTestSteps,
                    holds ? "as" : "unlike", largest));
  }

  std::shared_ptr<comm::Communicator> group_;
  std::ostream& out_;
  bool failed_ = false;
};

}  // namespace

int self_test(const std::vector<std::string>& args, std::ostream& out, std::ostream&) {
  config::OptionTable table("tessera self-test", "checks ranks, collectives and training; 'tessera test' launches it");
  if (table.parse(args) == config::ParseResult::kHelp) {
    out << table.help();
    return 0;
  }
  return SelfTest(comm::connect(), out).run() ? 0 : 1;
}

}  // namespace tessera::tasks
