// Family H of the goldens: torch FSDP's losses and gradient norms, by strategy, precision and way of accumulating.
#include <ATen/TensorOperators.h>
#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>

#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "train/trainer.h"
#include "verify/reference_json.h"
#include "verify/replay.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// One entry of "runs": a model, the ranks that the reference had, and how they were wrapped.
struct FsdpCase {
  std::string name, model;
  int ranks = 0;
  json expected;
  bool accumulates = false, no_sync = false;
  double loss_tolerance = 1e-5, norm_tolerance = 1e-4;
  fsdp::FsdpOptions fsdp;
};

at::ScalarType dtype_named(const std::string& name) {
  const auto found = c10::getStringToDtypeMap().find(name);
  if (found != c10::getStringToDtypeMap().end()) return found->second;
  throw ConfigError("expect.json: dtype '" + name + "' is not known; this run is not replayed", "config");
}

/// The reference's settings over what the command line says.
void apply_config(FsdpCase& c, const json& config) {
  for (const auto& [key, value] : config.items()) {
    if (key == "v") {
      // FSDP1 or FSDP2: the version shows in the output's dtype only, see below.
    } else if (key == "param") {
      c.fsdp.precision.param_dtype = c.fsdp.precision.buffer_dtype = dtype_named(value);
    } else if (key == "reduce") {
      c.fsdp.precision.reduce_dtype = dtype_named(value);
    } else if (key == "grad_op") {
      if (value.get<bool>()) c.fsdp.strategy = fsdp::ShardingStrategy::kShardGradOp;
    } else if (key == "no_shard") {
      if (value.get<bool>()) c.fsdp.strategy = fsdp::ShardingStrategy::kNoShard;
    } else if (key == "accum") {
      c.accumulates = value;
    } else if (key == "nosync") {
      c.no_sync = value;
    } else if (key != "orig") {  // use_orig_params is about upstream's memory
      throw ConfigError("expect.json: config." + key + " is not known; run '" + c.name + "' is not replayed", key);
    }
  }
  const bool low = c.fsdp.precision.param_dtype.value_or(at::kFloat) != at::kFloat;
  if (low && config.value("v", 1) == 2) c.fsdp.precision.output_dtype = at::kFloat;
  if (low || c.fsdp.precision.reduce_dtype.value_or(at::kFloat) != at::kFloat)
    c.loss_tolerance = 1e-2, c.norm_tolerance = 3e-2;
}

/// The runs that a world of this size can play: a rank plays the same number of the reference's ranks.
std::vector<FsdpCase> cases_of(const json& expect, const VerifyOptions& options, int world) {
  std::vector<FsdpCase> cases;
  for (const auto& [key, runs] : expect.at("runs").items()) {
    const auto at = key.rfind('_');
    int ranks = 0;
    if (at == std::string::npos || std::sscanf(key.c_str() + at, "_%dranks", &ranks) != 1 || ranks % world != 0)
      continue;
    for (const auto& [name, run] : runs.items()) {
      if (!run.contains("config") || run.contains("error"))
        continue;  // the single process, and what upstream failed at
      FsdpCase c{
          .name = key + "/" + name, .model = key.substr(0, at), .ranks = ranks, .expected = run, .fsdp = options.fsdp};
      apply_config(c, run.at("config"));
      cases.push_back(std::move(c));
    }
  }
  if (cases.empty())
    throw ConfigError(fmt::format("no run of '{}' can be played by {} ranks: use a number that divides the reference's",
                                  options.folder, world),
                      "num_processes");
  return cases;
}

models::ModelInput fsdp_batch(const io::TensorSource& batches, const std::string& prefix, std::int64_t begin,
                              std::int64_t rows, models::ModelKind kind) {
  const auto read = [&](const std::string& name) {
    return batches.find(prefix + name) ? io::read_tensor(batches, prefix + name).slice(0, begin, begin + rows)
                                       : at::Tensor();
  };
  models::ModelInput in;
  in.input_ids = read("input_ids");
  in.attention_mask = read("attention_mask");
  in.position_ids = read("position_ids");
  in.labels = read("labels");
  in.loss_normalizer = loss_labels(in.labels, kind);
  in.want_logits = false;
  return in;
}

/// Forward and backward of one step; the sum of this rank's losses.
double play_step(tasks::Assembled& a, const FsdpCase& c, const io::TensorSource& batches, std::int64_t step,
                 std::int64_t micro_steps, std::int64_t rows) {
  const auto& group = a.sharded->group();
  const int played = c.ranks / group.size();
  double sum = 0;
  for (std::int64_t micro = 0; micro < micro_steps; ++micro) {
    for (int i = 0; i < played; ++i) {
      std::optional<fsdp::NoSync> no_sync;
      const bool last = i + 1 == played && micro + 1 == micro_steps;
      if (!last && (c.no_sync || i + 1 < played)) no_sync.emplace(*a.sharded);
      const auto in = fsdp_batch(batches, fmt::format("step{}.micro{}.", step, micro),
                                 (group.rank() * played + i) * rows, rows, a.config.kind);
      const at::Tensor loss = (*a.model)(in).loss;
      (loss / static_cast<double>(micro_steps)).backward();
      sum += loss.item<double>();
    }
  }
  return sum;
}

void play(Comparison& table, const FsdpCase& c, const json& settings, const fs::path& folder,
          const std::shared_ptr<comm::Communicator>& group) {
  tasks::Assembled a =
      tasks::assemble({.model_folder = (folder / ("base_" + c.model)).string(), .fsdp = c.fsdp}, group);
  a.sharded->set_gradient_divisor(c.ranks);
  const auto optimizer =
      make_optimizer(a, "adamw_torch", {.lr = settings.at("lr"), .weight_decay = 0.01}, DecayGroups::kAll);
  const auto batches =
      io::open_safetensors((folder / fmt::format("batches_{}_{}ranks.safetensors", c.model, c.ranks)).string());
  const std::int64_t micro_steps = c.accumulates ? settings.at("accum").get<std::int64_t>() : 1;
  a.model->train();
  for (const char* key : {"mean_loss", "grad_norm"})
    table.require_count(c.name + " " + key, c.expected.at(key).size(), settings.at("steps").get<std::int64_t>());
  for (std::size_t step = 0; step < settings.at("steps").get<std::size_t>(); ++step) {
    const double sum = play_step(a, c, *batches, static_cast<std::int64_t>(step), micro_steps, settings.at("per_rank"));
    const double loss = train::sum_over_ranks(*group, sum) / static_cast<double>(c.ranks * micro_steps);
    table.add(fmt::format("{} loss step {}", c.name, step), loss, c.expected.at("mean_loss").at(step).get<double>(),
              c.loss_tolerance);
    table.add(fmt::format("{} grad_norm step {}", c.name, step),
              a.sharded->clip_grad_norm(settings.at("clip").get<double>()),
              c.expected.at("grad_norm").at(step).get<double>(), c.norm_tolerance);
    optimizer->step();
    optimizer->zero_grad();
  }
}

}  // namespace

bool verify_fsdp(const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, std::ostream& out) {
  const json expect = read_reference_json(options.folder + "/expect.json");
  Comparison table;
  const auto cases = cases_of(expect, options, group->size());
  for (const auto& c : cases) play(table, c, expect.at("settings"), options.folder, group);
  table.merge(*group);
  out << fmt::format("{} runs of torch FSDP, {} rank{}\n", cases.size(), group->size(), group->size() == 1 ? "" : "s");
  table.print(out);
  return table.passed();
}

}  // namespace tessera::verify
