// Family K of the goldens: runs of TRL's DPOTrainer from given weights and rows.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>

#include "base/json_text.h"
#include "models/names_in_files.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "train/metric_means.h"
#include "verify/preference_folders.h"
#include "verify/reference_json.h"
#include "verify/replay.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct PreferenceRun {
  std::string folder;
  json expect;
  preference::Objective objective;
  data::PreferenceCollateOptions collate;
  std::vector<data::PreferenceRow> rows;
  std::int64_t per_device = 8, accumulation = 1, max_steps = 0;
  double lr = 0;
};

PreferenceRun read_preference_run(const std::string& folder) {
  PreferenceRun run;
  run.folder = folder;
  run.expect = read_reference_json(folder + "/expect.json");
  // The last two stand beside kwargs, with their defaults where kwargs lacks them.
  static const std::set<std::string> kIgnored = {"form",  "lens",         "lr_scheduler_type", "logging_steps",
                                                 "optim", "weight_decay", "max_grad_norm"};
  for (const auto& [key, value] : run.expect.at("kwargs").items()) {
    if (key == "per_device_train_batch_size") {
      run.per_device = value;
    } else if (key == "gradient_accumulation_steps") {
      run.accumulation = value;
    } else if (key == "max_steps") {
      run.max_steps = value;
    } else if (key == "learning_rate") {
      run.lr = value;
    } else if (key == "max_length") {
      run.collate.max_length = value.is_null() ? 0 : value.get<std::int64_t>();
    } else if (key == "truncation_mode") {
      run.collate.truncation_mode =
          value == "keep_end" ? data::TruncationMode::kKeepEnd : data::TruncationMode::kKeepStart;
    } else if (!kIgnored.contains(key) && !set_argument(run.objective, key, value)) {
      throw ConfigError(
          "expect.json: kwargs." + key + " = " + json_text(value) + " is not known; this run is not replayed",
          "kwargs." + key);
    }
  }
  for (const auto& row : run.expect.at("rows")) {
    data::PreferenceRow r;
    row.at("prompt_ids").get_to(r.prompt);
    row.at("chosen_ids").get_to(r.chosen);
    row.at("rejected_ids").get_to(r.rejected);
    r.rejected_prompt = r.prompt;
    run.rows.push_back(std::move(r));
  }
  return run;
}

/// Rows of the micro-batches of a step: in file order, from the start again in every epoch, whose last step may have
/// fewer.
std::vector<Span> batches_of_step(const PreferenceRun& run, std::int64_t step) {
  const auto rows = static_cast<std::int64_t>(run.rows.size());
  const auto per_epoch = (rows + run.per_device - 1) / run.per_device;
  const auto steps = (per_epoch + run.accumulation - 1) / run.accumulation;
  std::vector<Span> out;
  const auto first = step % steps * run.accumulation;
  for (auto m = first; m < std::min(first + run.accumulation, per_epoch); ++m)
    out.push_back({m * run.per_device, std::min(rows, (m + 1) * run.per_device)});
  return out;
}

tasks::PreferencePart part_of_rows(const PreferenceRun& run, const Span& batch, const comm::Communicator& group) {
  const Span own = span_of(batch.size(), group);
  const auto begin = run.rows.begin() + batch.begin;
  tasks::PreferencePart part;
  part.batch = data::collate_pairs({begin + own.begin, begin + own.end}, run.collate);
  part.first = own.size() == 0 ? 0 : own.begin;
  part.all = batch.size();
  return part;
}

void compare_log(Comparison& table, const PreferenceRun& run, std::int64_t step, double norm, double lr,
                 const train::Metrics& metrics) {
  constexpr double kFirst = 2e-5, kLast = 1e-4;  // the paths of two float32 runs part slowly
  const double tolerance = step == 0 ? kFirst : kLast;
  for (const auto& row : run.expect.at("log_history")) {
    if (row.at("step") != step + 1 || !row.contains("grad_norm")) continue;
    table.add(fmt::format("grad_norm step {}", step), norm, row.at("grad_norm").get<double>(), 1e-4);
    table.add(fmt::format("lr step {}", step), lr, row.at("learning_rate").get<double>(), 1e-12);
    for (const auto& [name, value] : metrics)
      if (row.contains(name))
        add_scaled(table, fmt::format("metrics step {} {}", step, name), value, row.at(name).get<double>(), 1.0,
                   tolerance);
  }
}

void compare_end(Comparison& table, const PreferenceRun& run, const tasks::Assembled& a) {
  const double limit = run.lr * static_cast<double>(run.max_steps);
  const auto file =
      fs::path(run.folder) / (a.adapters ? "adapter_final/adapter_model.safetensors" : "final.safetensors");
  const auto reference = io::open_safetensors(file.string());
  const auto tensors = final_tensors(a);
  const models::NamesInFiles names(*a.model);
  std::set<std::string> compared;
  for (const auto& info : reference->tensors()) {
    const auto known = names.parameter_of(info.name);
    const auto it = tensors.find(known.empty() ? info.name : known);
    if (it == tensors.end()) {
      table.fail("weights " + info.name, "is not among the trained parameters");
    } else {
      compared.insert(it->first);
      table.add_weights("weights " + info.name, it->second, io::read_tensor(*reference, info.name), 2e-5, limit);
    }
  }
  for (const auto& [name, tensor] : tensors)
    if (!compared.contains(name)) table.fail("weights " + name, "is not in the reference");
}

}  // namespace

bool verify_preference_run(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const PreferenceRun run = read_preference_run(options.folder);
  const std::string start = run.expect.at("start"), marker = ", reference ";
  const auto at = start.find(marker);
  const auto place = model_place(options.folder, start.substr(0, at));
  tasks::Assembled a = preference_model(place, options, group);
  std::optional<tasks::Assembled> reference;
  if (at != std::string::npos)
    reference = preference_model(model_place(options.folder, start.substr(at + marker.size())), options, group);
  const auto optimizer =
      make_optimizer(a, "adamw_torch", {.lr = run.lr, .weight_decay = run.expect.at("weight_decay").get<double>()},
                     DecayGroups::kTrainer);
  const auto& losses = run.expect.at("micro_losses");
  a.model->eval();  // upstream has no dropout here
  if (reference) reference->model->eval();
  Comparison table;
  std::size_t micro = 0;
  for (std::int64_t step = 0; step < run.max_steps; ++step) {
    const auto batches = batches_of_step(run, step);
    train::MetricMeans means;
    for (std::size_t b = 0; b < batches.size(); ++b) {
      std::optional<fsdp::NoSync> no_sync;
      if (b + 1 < batches.size()) no_sync.emplace(*a.sharded);
      const auto part = part_of_rows(run, batches[b], *group);
      const auto logps = ask_reference(reference ? reference->model.get() : nullptr, *a.model, part, run.objective);
      const auto made = tasks::preference_step(*a.model, part, logps, run.objective, *group);
      (made.loss / static_cast<double>(batches.size())).backward();
      add_scaled(table, fmt::format("loss micro-batch {}", micro), made.result.loss.item<double>(),
                 losses.at(micro).get<double>(), kSmallLoss, step == 0 ? 2e-5 : 1e-4);
      means.add(made.result.metrics);
      ++micro;
    }
    const double norm = a.sharded->clip_grad_norm(run.expect.at("max_grad_norm").get<double>());
    compare_log(table, run, step, norm, optimizer->lr(), means.values());
    optimizer->step();
    optimizer->zero_grad();
  }
  const auto& log = run.expect.at("log_history");
  const auto of_step = [](const json& row) { return row.contains("grad_norm"); };
  table.require_count("grad_norm", static_cast<std::size_t>(std::count_if(log.begin(), log.end(), of_step)),
                      run.max_steps);
  table.require_count("loss", losses.size(), static_cast<std::int64_t>(micro));
  compare_end(table, run, a);
  table.merge(*group);
  out << fmt::format("{} (preference training, {} steps, {} rank{})\n", fs::path(options.folder).filename().string(),
                     run.max_steps, group->size(), group->size() == 1 ? "" : "s");
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
