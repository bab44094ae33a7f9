#pragma once
// Trains a SmallNet sharded over thread-ranks, or alone on all ranks' batches, and returns what there is to compare.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/small_net.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/optimizer.h"

namespace tessera::testing {

inline const fsdp::GatherForm kForms[] = {fsdp::GatherForm::kCopy, fsdp::GatherForm::kShared};

struct Training {
  std::map<std::string, at::Tensor> weights;  // after the last step
  std::vector<double> norms;                  // gradient norm of each step, before clipping
  std::vector<double> losses;                 // mean over ranks
  fsdp::CommStats stats;
  fsdp::MemoryStats memory;
};

struct TrainOptions {
  int steps = 5;
  double clip = 0.5, p = 2.0;
  bool clip_in_step = false;                                  // by the optimizer, as it reads the gradients
  std::function<void(SmallNet&)> prepare = [](SmallNet&) {};  // before sharding
  std::function<at::Device(int rank)> device_of = [](int) { return at::Device(at::kCPU); };
  std::function<void(SmallNet&, int rank, int step)> before_step = [](SmallNet&, int, int) {};
};

inline optim::AdamWOptions adamw_options() {
  return {.lr = 1e-2, .weight_decay = 0.1};
}

inline Training train_alone(int world, NetOptions net, const TrainOptions& how = {}) {
  SmallNet model(net);
  how.prepare(model);
  std::vector<at::Tensor> trained;
  for (auto& p : model.parameters())
    if (p.requires_grad() &&
        (trained.empty() || !std::any_of(trained.begin(), trained.end(), [&](auto& t) { return t.is_same(p); })))
      trained.push_back(p);
  for (auto& p : trained) p.mutable_grad() = at::zeros_like(p.detach());
  optim::AdamW optimizer(trained, adamw_options());
  Training result;
  for (int step = 0; step < how.steps; ++step) {
    for (auto& p : trained) p.mutable_grad() = at::zeros_like(p.detach());
    double loss_sum = 0;
    for (int rank = 0; rank < world; ++rank) {
      how.before_step(model, rank, step);
      auto loss = loss_of(model(batch(rank, step)), rank, step) / world;
      loss_sum += loss.item<double>();
      loss.backward();
    }
    double norm = 0;
    for (auto& p : trained) {
      const auto g = p.grad().to(at::kDouble).abs();
      norm = std::isinf(how.p) ? std::max(norm, g.max().item<double>()) : norm + g.pow(how.p).sum().item<double>();
    }
    norm = std::isinf(how.p) ? norm : std::pow(norm, 1 / how.p);
    at::NoGradGuard no_grad;
    if (how.clip / (norm + 1e-6) < 1)
      for (auto& p : trained) p.mutable_grad().mul_(how.clip / (norm + 1e-6));
    optimizer.step();
    result.norms.push_back(norm);
    result.losses.push_back(loss_sum);
  }
  for (auto& p : model.named_parameters()) result.weights[p.key()] = p.value().detach().clone();
  return result;
}

/// One Training for each rank.
inline std::vector<Training> train_sharded(int world, NetOptions net, const fsdp::FsdpOptions& options,
                                           const TrainOptions& how = {}) {
  std::vector<Training> results(static_cast<std::size_t>(world));
  comm::run_threads(world, [&](std::shared_ptr<comm::Communicator> group) {
    auto& result = results[static_cast<std::size_t>(group->rank())];
    SmallNet model(net);
    how.prepare(model);
    auto mine = options;
    mine.device = how.device_of(group->rank());
    auto sharded = fsdp::fully_shard(model, group, mine);
    optim::AdamW optimizer(sharded->parameters(), adamw_options());
    for (int step = 0; step < how.steps; ++step) {
      how.before_step(model, group->rank(), step);
      auto loss = loss_of(model(batch(group->rank(), step)), group->rank(), step);
      loss.backward();
      result.losses.push_back(loss.item<double>());
      result.norms.push_back(how.clip_in_step ? sharded->clip_grad_norm(how.clip, optimizer, how.p)
                                              : sharded->clip_grad_norm(how.clip, how.p));
      optimizer.step();
      optimizer.zero_grad();
    }
    result.stats = sharded->comm_stats();
    result.memory = sharded->memory();
    sharded->visit_full(
        [&](const std::string& name, const at::Tensor& t) { result.weights[name] = t.detach().clone(); });
  });
  return results;
}

inline double worst_difference(const Training& a, const Training& b) {
  double worst = 0;
  for (const auto& [name, t] : a.weights) {
    auto other = b.weights.find(name);
    if (other == b.weights.end()) continue;
    worst = std::max(worst, (t.to(at::kDouble) - other->second.to(at::kDouble)).abs().max().item<double>());
  }
  return worst;
}

}  // namespace tessera::testing
