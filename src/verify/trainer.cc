// A run of transformers' Trainer: rows, settings, the log it wrote, and the weights it ended with.
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>

#include "base/json_text.h"
#include "models/names_in_files.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/schedule.h"
#include "train/trainer.h"
#include "verify/noise.h"
#include "verify/reference_json.h"
#include "verify/replay.h"
#include "verify/unused_bias.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct TrainerRun {
  json rows, log;
  std::int64_t per_device = 1, accumulation = 1, max_steps = 0, warmup = 0;
  double lr = 0, weight_decay = 0, clip = 1.0;
  std::string schedule = "linear";
};

TrainerRun read(const json& expect) {
  TrainerRun run{.rows = expect.at("rows"), .log = expect.at("log_history")};
  static const std::set<std::string> kIgnored = {"base", "rows", "seq", "save_steps"};
  for (const auto& [key, value] : expect.at("settings").items()) {
    if (key == "per_device") {
      run.per_device = value;
    } else if (key == "accum") {
      run.accumulation = value;
    } else if (key == "max_steps") {
      run.max_steps = value;
    } else if (key == "warmup_steps") {
      run.warmup = value;
    } else if (key == "lr") {
      run.lr = value;
    } else if (key == "wd") {
      run.weight_decay = value;
    } else if (key == "max_grad_norm") {
      run.clip = value;
    } else if (key == "scheduler") {
      run.schedule = value;
    } else if (!kIgnored.contains(key)) {
      throw ConfigError(
          "expect.json: settings." + key + " = " + json_text(value) + " is not known; this run is not replayed",
          "settings." + key);
    }
  }
  return run;
}

/// Rows [begin, end) of the data, padded to the longest.
models::ModelInput collate(const json& rows, std::int64_t begin, std::int64_t end, std::int64_t pad) {
  std::int64_t longest = 0;
  for (auto i = begin; i < end; ++i)
    longest = std::max(longest, static_cast<std::int64_t>(rows.at(i).at("input_ids").size()));
  models::ModelInput in;
  in.input_ids = at::full({end - begin, longest}, pad, at::kLong);
  in.labels = at::full({end - begin, longest}, -100, at::kLong);
  in.attention_mask = at::full({end - begin, longest}, 0, at::kLong);
  for (auto i = begin; i < end; ++i) {
    const auto ids = rows.at(i).at("input_ids").get<std::vector<std::int64_t>>();
    const auto labels = rows.at(i).at("labels").get<std::vector<std::int64_t>>();
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const auto at = (i - begin) * longest + static_cast<std::int64_t>(t);
      in.input_ids.mutable_data_ptr<std::int64_t>()[at] = ids[t];
      in.labels.mutable_data_ptr<std::int64_t>()[at] = labels.at(t);
      in.attention_mask.mutable_data_ptr<std::int64_t>()[at] = 1;
    }
  }
  return in;
}

struct Range {
  std::int64_t begin, end;
};

/// The micro-batches of optimizer step `step`: rows in file order, an epoch's last step may have fewer.
std::vector<Range> micro_batches(const TrainerRun& run, std::int64_t step) {
  const auto rows = static_cast<std::int64_t>(run.rows.size());
  const auto per_epoch = (rows + run.per_device - 1) / run.per_device;
  const auto steps = (per_epoch + run.accumulation - 1) / run.accumulation;
  std::vector<Range> out;
  const auto first = step % steps * run.accumulation;
  for (auto m = first; m < std::min(first + run.accumulation, per_epoch); ++m)
    out.push_back({m * run.per_device, std::min(rows, (m + 1) * run.per_device)});
  return out;
}

/// Forward and backward of a step; the loss over all ranks. Trainer divides by all labels, also those of first tokens.
double step_loss(const TrainerRun& run, std::int64_t step, const tasks::Assembled& a, comm::Communicator& group) {
  const auto batches = micro_batches(run, step);
  double labels = 0, loss_here = 0;
  for (const auto& b : batches) {
    for (auto i = b.begin; i < b.end; ++i)
      for (const auto& label : run.rows.at(i).at("labels")) labels += label.get<std::int64_t>() != -100;
  }
  for (std::size_t i = 0; i < batches.size(); ++i) {
    std::optional<fsdp::NoSync> no_sync;
    if (i + 1 < batches.size()) no_sync.emplace(*a.sharded);
    const RowShare share = row_share(batches[i].end - batches[i].begin, group);
    auto in = collate(run.rows, batches[i].begin + share.begin, batches[i].begin + share.end,
                      std::max<std::int64_t>(0, a.config.pad_token_id));
    in.loss_normalizer = share.copies * labels;
    in.want_logits = false;
    const at::Tensor loss = (*a.model)(in).loss;
    loss.backward();
    loss_here += loss.item<double>();
  }
  return train::sum_over_ranks(group, loss_here);
}

void compare_final(Comparison& table, const TrainerRun& run, const std::string& folder, const tasks::Assembled& a,
                   optim::Optimizer& optimizer) {
  const auto reference = io::open_safetensors(folder + "/final.safetensors");
  const double limit = run.lr * static_cast<double>(run.max_steps);
  const models::NamesInFiles names(*a.model);
  std::map<std::string, at::Tensor> sizes;
  optim::visit_full_state(optimizer, *a.sharded->shard_group(),
                          [&](const std::string& name, const std::string& kind, const at::Tensor& t) {
                            if (kind == "exp_avg_sq") sizes[name] = t.sqrt();
                          });
  const auto noise = noise_among(sizes);
  std::set<std::string> seen;
  a.sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
    bool found = false;
    for (const auto& info : reference->tensors()) {
      if (!info.name.starts_with("final.") || names.parameter_of(info.name.substr(6)) != name) continue;
      found = true;
      seen.insert(info.name);
      if (is_unused_bias(names, *reference, info.name.substr(6), "final.")) continue;
      table.add_weights("weights " + info.name.substr(6), t, io::read_tensor(*reference, info.name), 2e-5, limit,
                        noise_of(noise, name));
    }
    if (!found) table.fail("weights " + name, "is not in the reference");
  });
  for (const auto& info : reference->tensors())
    if (!seen.contains(info.name)) table.fail("weights " + info.name, "is not among the model's weights");
}

}  // namespace

bool verify_trainer(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const auto expect = read_reference_json(options.folder + "/expect.json");
  const TrainerRun run = read(expect);
  const auto base = fs::path(options.folder).lexically_normal() / ".." / expect.at("base").get<std::string>();
  tasks::Assembled a = tasks::assemble(
      {.model_folder = base.string(), .attn_implementation = kReferenceAttention, .fsdp = options.fsdp}, group);
  a.sharded->set_gradient_divisor(1.0);
  const auto optimizer =
      make_optimizer(a, "adamw_torch", {.lr = run.lr, .weight_decay = run.weight_decay}, DecayGroups::kTrainer);
  const auto schedule =
      optim::make_schedule(run.schedule, {.lr = run.lr, .warmup_steps = run.warmup, .total_steps = run.max_steps});
  a.model->train();
  Comparison table;
  const auto has_loss = [](const json& row) { return row.contains("loss"); };
  table.require_count("loss", static_cast<std::size_t>(std::count_if(run.log.begin(), run.log.end(), has_loss)),
                      run.max_steps);
  for (std::int64_t step = 0; step < run.max_steps; ++step) {
    const double loss = step_loss(run, step, a, *group);
    const double norm = a.sharded->clip_grad_norm(run.clip);
    optimizer->set_lr(schedule->lr(step));
    for (const auto& row : run.log) {
      if (row.at("step") != step + 1 || !row.contains("loss")) continue;
      const double logged = row.at("loss");  // rounded to four places
      table.add(fmt::format("loss step {}", step), 1 + (loss - logged), 1, 5e-5 + 1e-5 * std::abs(logged));
      table.add(fmt::format("grad_norm step {}", step), norm, row.at("grad_norm").get<double>(), 1e-4);
      table.add(fmt::format("lr step {}", step), optimizer->lr(), row.at("learning_rate").get<double>(), 1e-12);
    }
    optimizer->step();
    optimizer->zero_grad();
  }
  compare_final(table, run, options.folder, a, *optimizer);
  table.merge(*group);
  out << fmt::format("{} (Trainer, {} steps, {} rank{})\n", fs::path(options.folder).filename().string(), run.max_steps,
                     group->size(), group->size() == 1 ? "" : "s");
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
