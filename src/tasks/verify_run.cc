// Family B of the goldens: a training run of some steps from given weights, batches and (PEFT) an initial adapter.
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

#include "base/file.h"
#include "io/tensor_source.h"
#include "tasks/assemble.h"
#include "tasks/verify.h"
#include "tessera/base/error.h"
#include "tessera/optim/schedule.h"
#include "tessera/optim/optimizer.h"
#include "train/trainer.h"

namespace tessera::tasks {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// What a run folder says.
struct Run {
  fs::path folder, base;
  json expect;
  std::int64_t steps = 0, warmup = 0;
  double lr = 0, weight_decay = 0, clip = 0;
  bool peft = false;
};

Run read_run(const std::string& folder) {
  Run run{.folder = folder, .base = {}, .expect = json::parse(read_file(folder + "/expect.json"))};
  const json& settings = run.expect.at("settings");
  run.base = fs::path(folder).lexically_normal() / ".." / run.expect.at("base").get<std::string>();
  if (!fs::is_directory(run.base)) {
    throw DataError("the start weights '" + run.base.string() + "' that expect.json names (\"base\") are missing",
                    folder);
  }
  run.steps = settings.at("steps");
  run.warmup = settings.value("warmup", 0);
  run.lr = settings.at("lr");
  run.weight_decay = settings.value("weight_decay", 0.0);
  run.clip = settings.value("clip", 0.0);
  run.peft = fs::exists(run.folder / "adapter_init");
  return run;
}

/// How the loss of a global batch is formed: over all its tokens, or the mean of the ranks' own means.
enum class LossMean { kTokens, kRanks };

models::ModelInput batch_of(const io::TensorSource& batches, std::int64_t step, const comm::Communicator& group,
                            LossMean mean) {
  const std::string prefix = fmt::format("step{}.", step);
  const RowShare rows = row_share(io::read_tensor(batches, prefix + "input_ids").size(0), group);
  const auto read = [&](const std::string& name) {
    return batches.find(prefix + name) ? io::read_tensor(batches, prefix + name).slice(0, rows.begin, rows.end)
                                       : at::Tensor();
  };
  models::ModelInput in;
  in.input_ids = read("input_ids");
  in.attention_mask = read("attention_mask");
  in.labels = read("labels");
  in.loss_normalizer = mean == LossMean::kTokens
                           ? rows.copies * io::read_tensor(batches, prefix + "labels").ne(-100).sum().item<double>()
                           : group.size() * in.labels.ne(-100).sum().item<double>();
  return in;
}

std::map<std::string, at::Tensor> trainable_tensors(fsdp::FullyShardedDataParallel& model, bool peft) {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, bool> trainable;
  for (const auto& view : model.shards()) trainable[view.name] = view.trainable;
  const auto wanted = [&](const std::string& name) { return trainable.at(name); };
  model.visit_full([&](const std::string& name,
                       const at::Tensor& t) { tensors[peft ? peft::adapter_file_name(name) : name] = t.clone(); },
                   wanted);
  return tensors;
}

void compare_final(Comparison& table, const Run& run, fsdp::FullyShardedDataParallel& model,
                   optim::Optimizer& optimizer) {
  const double limit = run.lr * static_cast<double>(run.steps);
  const auto reference = io::open_safetensors(
      (run.folder / (run.peft ? "adapter_final/adapter_model.safetensors" : "final.safetensors")).string());
  const auto tensors = trainable_tensors(model, run.peft);
  for (const auto& info : reference->tensors()) {
    const auto it = tensors.find(info.name);
    if (it == tensors.end()) {
      table.fail("weights " + info.name, "is not among the trained parameters");
    } else {
      table.add_weights("weights " + info.name, it->second, io::read_tensor(*reference, info.name), 2e-5, limit);
    }
  }
  const fs::path optimizer_file = run.folder / "final_optimizer.safetensors";
  if (!fs::exists(optimizer_file)) return;
  const auto state = io::open_safetensors(optimizer_file.string());
  optim::visit_full_state(
      optimizer, *model.shard_group(), [&](const std::string& name, const std::string& kind, const at::Tensor& t) {
        const std::string key = name + "." + kind;
        if (state->find(key)) table.add("optimizer " + key, t, io::read_tensor(*state, key), 1e-3);
      });
}

void compare_first_gradients(Comparison& table, const Run& run, fsdp::FullyShardedDataParallel& model) {
  const fs::path file = run.folder / "step0_grads.safetensors";
  if (!fs::exists(file)) return;
  const auto reference = io::open_safetensors(file.string());
  const std::string prefix = run.peft ? "grad.base_model.model." : "grad.";
  model.visit_full_grads([&](const std::string& name, const at::Tensor& g) {
    if (!reference->find(prefix + name)) return;
    const at::Tensor expected = io::read_tensor(*reference, prefix + name);
    if (expected.abs().max().item<double>() > 0) table.add("step0_gradient " + name, g, expected, 1e-4);
  });
}

/// Logits of batch 0 with the trained adapter, in eval mode.
void compare_final_logits(Comparison& table, const Run& run, const io::TensorSource& batches, models::Model& model,
                          const comm::Communicator& group) {
  const fs::path file = run.folder / "final_logits.safetensors";
  const std::string name = "logits_adapter_final_batch0";
  if (!fs::exists(file)) return;
  const auto reference = io::open_safetensors(file.string());
  if (!reference->find(name)) return;
  const c10::AutoGradMode no_grad(false);
  model.eval();
  const at::Tensor expected = io::read_tensor(*reference, name);
  const RowShare rows = row_share(expected.size(0), group);
  table.add("final_logits", model(batch_of(batches, 0, group, LossMean::kTokens)).logits,
            expected.slice(0, rows.begin, rows.end), 1e-4);
}

bool replay(const Run& run, const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, LossMean mean,
            const std::string& rows_key, std::ostream& out) {
  Assembled a = assemble({.model_folder = run.base.string(),
                          .adapter_folder = run.peft ? (run.folder / "adapter_init").string() : "",
                          .fsdp = options.fsdp},
                         group);
  fsdp::FullyShardedDataParallel& model = *a.sharded;
  model.set_gradient_divisor(1.0);
  optim::AdamW optimizer(model.parameters(), fsdp::parameter_slices(model),
                         {.lr = run.lr, .weight_decay = run.weight_decay});
  const auto batches = io::open_safetensors((run.base / "batches.safetensors").string());
  const json& expected = run.expect.at(rows_key);
  const bool final_state = mean == LossMean::kTokens;  // the folder's final weights belong to these rows
  Comparison table;
  a.model->train();
  for (std::int64_t step = 0; step < run.steps; ++step) {
    models::ModelInput in = batch_of(*batches, step, *group, mean);
    in.want_logits = false;
    const at::Tensor loss = (*a.model)(in).loss;
    loss.backward();
    const double value = train::sum_over_ranks(*group, loss.item<double>());
    if (step == 0 && final_state) compare_first_gradients(table, run, model);
    const double norm = model.clip_grad_norm(run.clip > 0 ? run.clip : std::numeric_limits<double>::infinity());
    const double lr = run.lr * optim::schedule("linear", step, run.warmup, run.steps);
    const auto at = static_cast<std::size_t>(step);
    const double loss_tolerance =
        step < 5 ? 1e-5 : 1e-5 + 9e-5 * static_cast<double>(step - 4) / static_cast<double>(run.steps);
    table.add(fmt::format("loss step {}", step), value, expected.at("loss").at(at).get<double>(), loss_tolerance);
    table.add(fmt::format("grad_norm step {}", step), norm, expected.at("grad_norm").at(at).get<double>(), 1e-4);
    table.add(fmt::format("lr step {}", step), lr, expected.at("lr").at(at).get<double>(), 1e-12);
    optimizer.set_lr(lr);
    optimizer.step();
    optimizer.zero_grad();
  }
  if (final_state) {
    compare_final(table, run, model, optimizer);
    compare_final_logits(table, run, *batches, *a.model, *group);
  }
  table.merge(*group);
  out << fmt::format("{} ({}, {} steps, {} rank{}, {})\n", run.folder.lexically_normal().filename().string(),
                     run.peft ? "adapter" : "full fine-tuning", run.steps, group->size(), group->size() == 1 ? "" : "s",
                     rows_key);
  table.print(out);
  return table.passed();
}

}  // namespace

bool verify_run(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const Run run = read_run(options.folder);
  bool passed = replay(run, options, group, LossMean::kTokens, "token_mean", out);
  const std::string rank_mean = fmt::format("rank_mean_{}", group->size());
  if (run.expect.contains(rank_mean)) passed = replay(run, options, group, LossMean::kRanks, rank_mean, out) && passed;
  return passed;
}

}  // namespace tessera::tasks
