#pragma once
// Short runs of an adapter over a base, on ranks that are threads: what sharding, resuming and merging must not change.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/pretrained.h"
#include "checkpoint/save_packed.h"
#include "checkpoint/training_state.h"
#include "checkpoint/visit_dense.h"
#include "support/compare.h"
#include "tasks/assemble.h"
#include "tensor/rng.h"
#include "tessera/optim/factory.h"
#include "train/method_optimizer.h"

namespace tessera::tasks::adapter_runs {

using enum fsdp::ShardingStrategy;

/// How the ranks hold the model.
struct Layout {
  int world = 1;
  fsdp::ShardingStrategy strategy = kNoShard;
  int shard_group_size = 0;
};

inline std::string text_of(const Layout& layout) {
  return fmt::format("{} ranks, strategy {}", layout.world, static_cast<int>(layout.strategy));
}

inline AssembleOptions laid_out(AssembleOptions o, const Layout& layout) {
  o.fsdp.strategy = layout.strategy;
  o.fsdp.wrap = nullptr;  // the model's blocks
  o.fsdp.shard_group_size = layout.shard_group_size;
  return o;
}

constexpr std::int64_t kRows = 12, kLength = 8;

/// This rank's rows of a step, with padding and, for aLoRA, its invocation.
inline models::ModelInput rows(const Assembled& a, int step, int rank, int world) {
  models::ModelInput in;
  auto ids = (at::arange(kRows * kLength) * (7 + 2 * step) % 43 + 5).view({kRows, kLength});
  ids.select(1, 2).fill_(9);
  const auto lengths = (kLength - at::arange(kRows).remainder(4)).unsqueeze(1);
  const auto mask = at::arange(kLength).unsqueeze(0).lt(lengths);
  const auto labels = ids.masked_fill(mask.logical_not(), -100);
  const auto mine = [&](const at::Tensor& t) { return t.slice(0, rank, std::nullopt, world).contiguous(); };
  in.input_ids = mine(ids.masked_fill(mask.logical_not(), 0));
  in.attention_mask = mine(mask.to(at::kLong));
  const bool classifies = a.config.kind == models::ModelKind::kSequenceClassification;
  in.labels = mine(classifies ? at::arange(kRows).remainder(3) : labels);
  in.row_ids = mine(at::arange(kRows));
  in.first_draw = static_cast<std::uint64_t>(step) << 20;
  in.loss_normalizer = 60;
  return in;
}

inline at::Tensor outputs_of(const Assembled& a) {
  a.model->eval();
  const at::NoGradGuard no_grad;
  return (*a.model)(rows(a, 9, 0, 4)).logits.to(at::kFloat);
}

/// A rank of a run. Adapters begin away from where they have no effect.
struct RankRun {
  RankRun(const AssembleOptions& options, const std::shared_ptr<comm::Communicator>& group)
      : a(assemble(options, group)), group(group) {
    a.sharded->set_gradient_divisor(1.0);
    if (options.adapter_folder.empty()) move();
    optimizer = optim::make_optimizer("adamw_torch", {.lr = 5e-3}, a.sharded->parameters(),
                                      fsdp::parameter_slices(*a.sharded), a.sharded->shard_group());
    optimizer->keep_state_in(a.sharded->offload_store());
    optimizer = train::with_method(std::move(optimizer), *a.sharded, a.adapters->method.get());
    a.model->train();
  }
  void move() {
    std::set<std::string> names;
    for (const auto& item : a.model->named_parameters())
      if (item.value().requires_grad()) names.insert(item.key());
    auto values = checkpoint::gather_values(*a.sharded, names);
    for (auto& [name, value] : values) {
      const auto noise = at::empty_like(value, at::kFloat);
      tensor::fill_normal(noise, tensor::named_key(5, name), 0.0, 0.05);
      value = value + noise;
    }
    checkpoint::write_values(*a.sharded, values);
  }
  double step(int number) {
    const auto loss = (*a.model)(rows(a, number, group->rank(), group->size())).loss;
    loss.backward();
    norm = a.sharded->clip_grad_norm(1e9, *optimizer);
    optimizer->step();
    optimizer->zero_grad();
    return loss.item<double>();
  }
  at::Tensor outputs() const { return outputs_of(a); }
  Assembled a;
  std::shared_ptr<comm::Communicator> group;
  std::unique_ptr<optim::Optimizer> optimizer;
  double norm = 0;
};

constexpr int kSteps = 4;

struct Run {
  std::vector<double> losses, norms;
  at::Tensor outputs;
};

/// Which steps of it, and what is read before and written after them.
struct Stretch {
  int begin = 0, end = kSteps;
  std::string from = {}, to = {};                         // folders of checkpoints
  std::string adapter = {};                               // the folder that it is saved in
  std::function<void(const RankRun&)> look_at = nullptr;  // every rank, at the end
};

/// Losses and norms of steps that were not run are 0.
inline Run train(const AssembleOptions& options, int world, const Stretch& stretch = {}) {
  Run run{std::vector<double>(kSteps), std::vector<double>(kSteps), {}};
  std::mutex mutex;
  comm::run_threads(world, [&](const std::shared_ptr<comm::Communicator>& group) {
    RankRun rank(options, group);
    if (!stretch.from.empty()) checkpoint::load_training_state(*rank.a.sharded, rank.optimizer.get(), stretch.from);
    for (int i = stretch.begin; i < stretch.end; ++i) {
      const double loss = rank.step(i);
      const std::lock_guard<std::mutex> lock(mutex);
      run.losses[static_cast<std::size_t>(i)] += loss;
      run.norms[static_cast<std::size_t>(i)] = rank.norm;
    }
    if (!stretch.to.empty()) checkpoint::save_training_state(*rank.a.sharded, *rank.optimizer, stretch.to);
    const auto out = rank.outputs();
    if (!stretch.adapter.empty())
      checkpoint::save_adapter(*rank.a.sharded, rank.a.adapted(), {.dtype = at::kFloat}, stretch.adapter);
    if (stretch.look_at) stretch.look_at(rank);
    if (group->rank() == 0) run.outputs = out;
  });
  return run;
}

/// The same run in two halves, the second one on `world` other ranks that read a checkpoint of the first. adapter: the
/// folder that it is saved in.
inline Run train_in_halves(const AssembleOptions& options, int world, const AssembleOptions& then, int then_world,
                           const std::string& checkpoint, const std::string& adapter = {}) {
  const auto first = train(options, world, {.end = kSteps / 2, .to = checkpoint});
  auto second = train(then, then_world, {.begin = kSteps / 2, .from = checkpoint, .adapter = adapter});
  for (std::size_t i = 0; i < kSteps / 2; ++i) {
    second.losses[i] = first.losses[i];
    second.norms[i] = first.norms[i];
  }
  return second;
}

/// Losses within 1e-5, gradients and the trained model's outputs within 1e-3 of their size.
inline void expect_same_run(const Run& got, const Run& want, const std::string& what) {
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5 * want.losses[i]) << what << ", loss of step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 1e-3 * want.norms[i]) << what << ", step " << i;
  }
  test::expect_close(got.outputs, want.outputs, 1e-3, what + ", outputs");
}

inline void expect_equal_run(const Run& got, const Run& want, const std::string& what) {
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_EQ(got.losses[i], want.losses[i]) << what << ", loss of step " << i;
    EXPECT_EQ(got.norms[i], want.norms[i]) << what << ", gradient of step " << i;
  }
  EXPECT_TRUE(at::equal(got.outputs, want.outputs)) << what;
}

}  // namespace tessera::tasks::adapter_runs
