// Families B and J of the goldens: a training run of some steps from given weights, batches and (PEFT) an initial
// adapter.
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>

#include "base/json_text.h"
#include "checkpoint/pretrained.h"
#include "models/names_in_files.h"
#include "peft/adapter_config.h"
#include "peft/adapter_files.h"
#include "tasks/assemble.h"
#include "tensor/device.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/schedule.h"
#include "train/lora_fa_projections.h"
#include "train/rank_allocation.h"
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

/// Relative. The loss of float32 runs drifts with the steps.
struct Tolerances {
  double first_losses = 1e-5, last_loss = 1e-4, norm = 1e-4, weights = 2e-5;

  /// AdamW's steps have the size of the learning rate, whatever the gradient's: so has what rounding makes of them.
  double of_weights(double largest_step_sum) const { return weights * std::max(1.0, largest_step_sum / 1e-2); }

  double loss(std::int64_t step, std::int64_t steps) const {
    constexpr std::int64_t kFirst = 5;
    if (step < kFirst) return first_losses;
    return first_losses +
           (last_loss - first_losses) * static_cast<double>(step + 1 - kFirst) / static_cast<double>(steps);
  }
};
constexpr Tolerances kBf16Tolerances = {.first_losses = 1e-2, .last_loss = 1e-2, .norm = 5e-2, .weights = 2e-1};

/// What a run folder says.
struct Run {
  fs::path folder, base, batches;
  json expect;
  std::optional<families::Quantization> quantization = {};  // the base is packed as it is read
  bool bf16 = false;                                        // computes in it
  Tolerances tolerances = {};
  std::int64_t steps = 0, warmup = 0;
  double clip = 0;
  std::string optimizer = "adamw_torch", schedule = "linear", schedule_kwargs = {};
  optim::OptimizerOptions options = {};
  DecayGroups decay = DecayGroups::kAll;
  train::LearningRates rates = {};
  bool peft = false;
};

void read_settings(Run& run, const json& settings) {
  // Sizes of the batches, which are given as they are.
  static const std::set<std::string> kIgnored = {"batch", "seq", "tgt"};
  for (const auto& [key, value] : settings.items()) {
    if (key == "steps") {
      run.steps = value;
    } else if (key == "warmup" || key == "warmup_steps") {
      run.warmup = value;
    } else if (key == "lr") {
      run.options.lr = value;
    } else if (key == "weight_decay") {
      run.options.weight_decay = value;
    } else if (key == "clip" || key == "max_grad_norm") {
      run.clip = value.is_null() ? 0.0 : value.get<double>();
    } else if (key == "betas") {
      run.options.adam_beta1 = value.at(0), run.options.adam_beta2 = value.at(1);
    } else if (key == "eps") {
      run.options.adam_epsilon = value;
    } else if (key == "schedule" || key == "scheduler" || key == "lr_scheduler_type") {
      run.schedule = value;
    } else if (key == "schedule_kwargs" || key == "lr_scheduler_kwargs") {
      run.schedule_kwargs = json_text(value);
    } else if (key == "optim" || key == "optimizer") {
      run.optimizer = value;
    } else if (key == "optim_args") {
      run.options.optim_args = value;
    } else if (!kIgnored.contains(key)) {
      throw ConfigError(
          "expect.json: settings." + key + " = " + json_text(value) + " is not known; this run is not replayed",
          "settings." + key);
    }
  }
}

/// ["loraplus", {"loraplus_lr_ratio": 8.0, ...}]: an optimizer of peft.optimizers.
void read_peft_optimizer(Run& run, const json& optimizer) {
  if (optimizer.at(0) == train::kLoraFa) {  // its rank and alpha are the adapter's
    run.optimizer = train::kLoraFa;
    run.options.weight_decay = optimizer.at(1).value("weight_decay", 0.0);
    run.tolerances = {.first_losses = 1e-4, .last_loss = 1e-3, .norm = 1e-3, .weights = 1e-2};  // bf16 in each step
    return;
  }
  if (optimizer.at(0) != "loraplus")
    throw ConfigError(
        "expect.json: options.optimizer = " + json_text(optimizer) + " is not known; this run is not replayed",
        "options.optimizer");
  for (const auto& [key, value] : optimizer.at(1).items()) {
    if (key == "loraplus_lr_ratio") {
      run.rates.loraplus_lr_ratio = value;
    } else if (key == "loraplus_lr_embedding") {
      run.rates.loraplus_lr_embedding = value;
    } else if (key == "loraplus_weight_decay") {
      run.options.weight_decay = value;
    } else {
      throw ConfigError("expect.json: options.optimizer's " + key + " is not known; this run is not replayed",
                        "options.optimizer");
    }
  }
}

/// Beside the run, or in the folder of family B.
fs::path base_of(const Run& run, const std::string& name) {
  const fs::path family = fs::path(run.folder).lexically_normal() / "..";
  return fs::is_directory(family / name) ? family / name : family / ".." / "B_train" / name;
}

/// Runs over packed bases (family C) name no base: it is the only one of their family, packed with double quantisation.
void read_packed_base(Run& run) {
  const json dtypes = run.expect.value("parameter_dtypes", json::object());
  const bool packed =
      std::any_of(dtypes.begin(), dtypes.end(), [](const json& dtype) { return dtype == "torch.uint8"; });
  if (!packed) return;
  run.quantization = {.quant_type = "nf4", .double_quant = true};
  run.bf16 = fs::path(run.folder).lexically_normal().filename().string().ends_with("_bf16");
  if (run.bf16) run.tolerances = kBf16Tolerances;
  run.batches = run.base / "qlora_batches.safetensors";
}

Run read_run(const std::string& folder) {
  Run run{.folder = folder, .base = {}, .batches = {}, .expect = read_reference_json(folder + "/expect.json")};
  run.base = base_of(run, run.expect.value("base", "base_llama"));
  run.batches = run.base / "batches.safetensors";
  read_packed_base(run);
  if (!fs::is_directory(run.base)) {
    throw DataError("the start weights '" + run.base.string() + "' that expect.json names (\"base\") are missing",
                    folder);
  }
  read_settings(run, run.expect.at("settings"));
  const json options = run.expect.value("options", json::object());
  if (options.contains("optimizer")) read_peft_optimizer(run, options.at("optimizer"));
  run.peft = fs::exists(run.folder / "adapter_init");
  const json how = run.expect.value("how", json());
  if (how == "trainer_groups") {
    run.decay = DecayGroups::kTrainer;
  } else if (!how.is_null() && !how.is_object()) {
    throw ConfigError("expect.json: how = " + json_text(how) + " is not known; this run is not replayed", "how");
  }
  return run;
}

/// How the loss of a global batch is formed: over all its tokens, or the mean of the ranks' own means.
enum class LossMean { kTokens, kRanks };

models::ModelInput batch_of(const io::TensorSource& batches, std::int64_t step, const comm::Communicator& group,
                            LossMean mean, const models::Model& model) {
  const auto count = [&](const at::Tensor& labels) { return loss_labels(labels, model.kind(), model.input_adapter()); };
  const std::string prefix = fmt::format("step{}.", step);
  const RowShare rows = row_share(io::read_tensor(batches, prefix + "input_ids").size(0), group);
  const auto read = [&](const std::string& name) {
    return batches.find(prefix + name) ? io::read_tensor(batches, prefix + name).slice(0, rows.begin, rows.end)
                                       : at::Tensor();
  };
  models::ModelInput in;
  in.input_ids = read("input_ids");
  in.attention_mask = read("attention_mask");
  in.token_type_ids = read("token_type_ids");
  in.position_ids = read("position_ids");
  in.labels = read("labels");
  in.router_loss = false;  // the reference takes the loss from logits
  in.loss_normalizer = mean == LossMean::kTokens ? rows.copies * count(io::read_tensor(batches, prefix + "labels"))
                                                 : group.size() * count(in.labels);
  return in;
}

/// Copies of frozen originals and of trained modules under another name, which PEFT adds when every bias is kept.
bool is_redundant(const std::string& name) {
  return name.find(".original_module.") != std::string::npos || name.find(".modules_to_save.") != std::string::npos;
}

void compare_final(Comparison& table, const Run& run, const tasks::Assembled& a, optim::Optimizer& optimizer) {
  const double limit = run.options.lr * static_cast<double>(run.steps);
  const auto reference = io::open_safetensors(
      (run.folder / (run.peft ? "adapter_final/adapter_model.safetensors" : "final.safetensors")).string());
  const auto tensors = final_tensors(a);
  const models::NamesInFiles names(*a.model);
  const auto noise = noisy_elements(run.folder);
  std::set<std::string> compared;
  for (const auto& info : reference->tensors()) {
    const auto known = names.parameter_of(info.name);
    const auto it = tensors.find(known.empty() ? info.name : known);
    if (is_redundant(info.name) || is_unused_bias(names, *reference, info.name)) continue;
    if (it == tensors.end()) {
      table.fail("weights " + info.name, "is not among the trained parameters");
    } else {
      compared.insert(it->first);
      table.add_weights("weights " + info.name, it->second, io::read_tensor(*reference, info.name),
                        run.tolerances.of_weights(limit), limit, noise_of(noise, info.name));
    }
  }
  for (const auto& [name, tensor] : tensors)
    if (!compared.contains(name)) table.fail("weights " + name, "is not in the reference");
  const fs::path optimizer_file = run.folder / "final_optimizer.safetensors";
  if (!fs::exists(optimizer_file)) return;
  const auto state = io::open_safetensors(optimizer_file.string());
  std::set<std::string> left;
  for (const auto& info : state->tensors()) left.insert(info.name);
  optim::visit_full_state(optimizer, *a.sharded->shard_group(),
                          [&](const std::string& name, const std::string& kind, const at::Tensor& t) {
                            const std::string key = name + "." + kind;
                            if (left.erase(key) == 0) return table.fail_unless_zero("optimizer " + key, t);
                            const auto hidden = noise_of(noise, name);
                            table.add("optimizer " + key, without_noise(t, hidden),
                                      without_noise(io::read_tensor(*state, key), hidden), 1e-3);
                          });
  for (const auto& key : left) table.fail("optimizer " + key, "is no state here");
}

/// Trained tensors that the adapter's file does not hold: encoders of virtual tokens.
fs::path trainable_file(const Run& run, const std::string& when) {
  return run.folder / ("trainable_" + when + ".safetensors");
}

void compare_trained(Comparison& table, const Run& run, const tasks::Assembled& a) {
  const auto file = trainable_file(run, "final");
  if (!fs::exists(file) && !fs::exists(trainable_file(run, "init"))) return;
  const auto reference = io::open_safetensors(file.string());
  std::map<std::string, std::string> names;
  std::set<std::string> left;
  for (const auto& view : a.sharded->shards())
    if (view.trainable) left.insert(view.name);
  for (const auto& info : reference->tensors()) names[plain_name(info.name)] = info.name;
  a.sharded->visit_full(
      [&](const std::string& name, const at::Tensor& t) {
        table.add_weights("trained " + name, t, io::read_tensor(*reference, names.at(name)), run.tolerances.weights,
                          run.options.lr * static_cast<double>(run.steps), {});
        names.erase(name);
        left.erase(name);
      },
      [&](const std::string& name) { return names.contains(name); });
  for (const auto& [name, theirs] : names) table.fail("trained " + theirs, "is no parameter here");
  for (const auto& name : left) table.fail("trained " + name, "is not in the reference");
}

/// The adapter at the start: that of the folder, or the trained tensors, whose encoders the folder does not hold.
void start_adapter(const Run& run, tasks::AssembleOptions& options) {
  if (!run.peft) return;
  const auto folder = (run.folder / "adapter_init").string();
  if (!fs::exists(trainable_file(run, "init"))) {
    options.adapter_folder = folder;
    return;
  }
  const std::shared_ptr<peft::PeftMethod> method = peft::read_adapter_config(folder);
  method->inference_mode = false;
  options.method = method;
}

void read_trainable(const Run& run, const tasks::Assembled& a) {
  const auto file = trainable_file(run, "init");
  if (!fs::exists(file)) return;
  const auto source = io::open_safetensors(file.string());
  peft::Values values;
  for (const auto& info : source->tensors()) values[plain_name(info.name)] = io::read_tensor(*source, info.name);
  checkpoint::write_values(*a.sharded, values);
}

/// The weights with the trained adapter folded in, as transformers loads them.
void compare_merged(Comparison& table, const Run& run, const tasks::Assembled& a, at::Device device) {
  const fs::path folder = run.folder / "merged";
  if (run.expect.value("merge", json()) == json("merged") && !fs::exists(folder))
    return table.fail("merged", "'" + folder.string() + "' is missing, which expect.json names (\"merge\")");
  if (!fs::exists(folder)) return;
  const auto reference = io::open_weights(folder.string());
  const auto noise = noisy_elements(run.folder);
  const models::NamesInFiles names(*a.model);
  std::set<std::string> seen;
  checkpoint::visit_merged(*a.sharded, a.adapted(), device, [&](const std::string& name, const at::Tensor& t) {
    const auto stored = names.in(*reference, name);
    if (stored.empty()) return table.fail("merged " + name, "is not in the reference");
    seen.insert(name);
    table.add_weights("merged " + name, tensor::on_host(t), io::read_tensor(*reference, stored), 1e-4, 1e-2,
                      noise_of(noise, name));
  });
  for (const auto& info : reference->tensors())
    if (!seen.contains(names.parameter_of(info.name)))
      table.fail("merged " + info.name, "is not among the model's weights");
}

/// The same parameters train, and as many are counted.
void compare_trainable(Comparison& table, const Run& run, const tasks::Assembled& a) {
  if (!run.peft || !run.expect.contains("trainable_names")) return;
  std::set<std::string> ours;
  for (const auto& view : a.sharded->shards())
    if (view.trainable) ours.insert(view.name);
  std::set<std::string> theirs;
  const models::NamesInFiles names(*a.model);
  for (const auto& name : run.expect.at("trainable_names")) {
    const auto known = names.parameter_of(plain_name(name));
    theirs.insert(known.empty() ? plain_name(name) : known);
  }
  for (const auto& name : theirs)
    if (!ours.contains(name)) table.fail("trainable " + name, "does not train here");
  for (const auto& name : ours)
    if (!theirs.contains(name)) table.fail("trainable " + name, "does not train in the reference");
  const auto count = [](std::int64_t n) { return static_cast<double>(n); };
  table.add("trainable parameters", count(a.adapters->trainable), run.expect.at("trainable").get<double>(), 0);
  table.add("trainable all", count(a.adapters->total), run.expect.at("all").get<double>(), 0);
}

void compare_first_gradients(Comparison& table, const Run& run, const tasks::Assembled& a) {
  const fs::path file = run.folder / "step0_grads.safetensors";
  if (!fs::exists(file)) return;
  const auto reference = io::open_safetensors(file.string());
  const auto noise = noisy_elements(run.folder);
  const models::NamesInFiles in_model(*a.model);
  std::map<std::string, std::string> names;  // ours -> theirs
  for (const auto& info : reference->tensors())
    if (info.name.starts_with("grad.")) {
      const auto plain = plain_name(info.name.substr(5)), known = in_model.parameter_of(plain);
      if (is_unused_bias(in_model, *reference, plain, "grad.")) continue;
      names[known.empty() ? plain : known] = info.name;
    }
  a.sharded->visit_full_grads([&](const std::string& name, const at::Tensor& g) {
    const auto it = names.find(name);
    if (it == names.end()) return table.fail_unless_zero("step0_gradient " + name, g);
    const auto hidden = noise_of(noise, name);
    table.add("step0_gradient " + name, without_noise(g, hidden),
              without_noise(io::read_tensor(*reference, it->second), hidden), 1e-4);
    names.erase(it);
  });
  for (const auto& [name, theirs] : names) table.fail("step0_gradient " + name, "was not computed");
}

/// Logits of batch 0 with the adapter as it is at the start ("init") or "final", in eval mode.
void compare_logits(Comparison& table, const Run& run, const std::string& when, const io::TensorSource& batches,
                    const tasks::Assembled& a, const comm::Communicator& group) {
  const fs::path file = run.folder / (when + "_logits.safetensors");
  const std::string name = "logits_adapter_" + when + "_batch0";
  if (!fs::exists(file)) return;
  const auto reference = io::open_safetensors(file.string());
  if (!reference->find(name)) return table.fail(when + "_logits", "are not in '" + file.string() + "'");
  const c10::AutoGradMode no_grad(false);
  a.model->eval();
  const at::Tensor expected = io::read_tensor(*reference, name);
  auto in = batch_of(batches, 0, group, LossMean::kTokens, *a.model);
  at::Tensor logits = (*a.model)(in).logits.cpu();
  // The file may hold the first rows only.
  const RowShare rows = row_share(io::read_tensor(batches, "step0.input_ids").size(0), group);
  const auto known = std::clamp<std::int64_t>(expected.size(0) - rows.begin, 0, rows.end - rows.begin);
  if (known == 0) return table.add(when + "_logits", 0.0, 0.0, 1e-4);  // every rank compares something
  logits = logits.narrow(0, 0, known);
  at::Tensor theirs = expected.narrow(0, rows.begin, known);
  if (in.attention_mask.defined()) in.attention_mask = in.attention_mask.narrow(0, 0, known);
  // Positions that padding hides mean nothing, but the decoder's of an encoder-decoder model are not hidden.
  if (logits.dim() == 3 && in.attention_mask.defined() && a.config.kind != models::ModelKind::kSeq2Seq) {
    const auto unmasked = logits.size(1) - in.attention_mask.size(1);  // virtual tokens
    const auto visible = at::constant_pad_nd(in.attention_mask, {unmasked, 0}, 1).unsqueeze(-1);
    logits = logits * visible;
    theirs = theirs * visible;
  }
  table.add(when + "_logits", logits, theirs, 1e-4);
}

/// AdaLoRA's scores where the reference allocated ranks, and which it kept in the end.
void compare_allocation(Comparison& table, const Run& run, std::int64_t step, const optim::Optimizer& optimizer) {
  const auto* ours = dynamic_cast<const train::RankAllocatingOptimizer*>(&optimizer);
  const fs::path file = run.folder / "allocation.safetensors";
  if (!ours || !fs::exists(file)) return;
  const auto reference = io::open_safetensors(file.string());
  for (const auto& [layer, scores] : ours->scores()) {
    const auto of_step = fmt::format("step{}.score.", step), name = of_step + layer + ".lora_E.default";
    const bool scored = std::any_of(reference->tensors().begin(), reference->tensors().end(),
                                    [&](const auto& t) { return t.name.starts_with(of_step); });
    if (scored) table.add("allocation " + name, at::tensor(scores), io::read_tensor(*reference, name), 1e-3);
  }
  if (step + 1 < run.steps) return;
  const auto written = json::parse(peft::adapter_config_json(ours->method())).at("rank_pattern");
  const auto expected = read_reference_json((run.folder / "adapter_final/adapter_config.json").string());
  if (written != expected.at("rank_pattern")) table.fail("allocation rank_pattern", "differs: " + json_text(written));
}

/// PEFT adds AdaLoRA's penalty to a loss that the model computes. A reference that computed the loss of its logits
/// itself has none, and says so: its loss is that of the task.
bool lacks_penalty(const Run& run, const json& rows) {
  const auto config = run.expect.find("peft_config");
  return config != run.expect.end() && config->value("peft_type", "") == "ADALORA" && rows.contains("task_loss") &&
         rows.at("task_loss") == rows.at("loss");
}

/// Files of a run without which something is not compared.
void print_missing(const Run& run, std::ostream& out) {
  std::vector<std::string> missing;
  for (const char* file : {"step0_grads.safetensors", "final_optimizer.safetensors", "init_logits.safetensors",
                           "final_logits.safetensors", "merged"})
    if (!fs::exists(run.folder / file)) missing.emplace_back(file);
  if (!missing.empty()) out << fmt::format("  not in the reference: {}\n", fmt::join(missing, ", "));
}

bool replay(const Run& run, const VerifyOptions& options, std::shared_ptr<comm::Communicator> group, LossMean mean,
            const std::string& rows_key, std::ostream& out) {
  auto fsdp = options.fsdp;
  if (run.bf16) fsdp.precision.param_dtype = at::kBFloat16;
  tasks::AssembleOptions start{.model_folder = run.base.string(),
                               .quantization = run.quantization,
                               .attn_implementation = kReferenceAttention,
                               .freeze_lora_a = run.optimizer == train::kLoraFa,
                               .fsdp = fsdp};
  start_adapter(run, start);
  tasks::Assembled a = tasks::assemble(start, group);
  read_trainable(run, a);
  fsdp::FullyShardedDataParallel& model = *a.sharded;
  model.set_gradient_divisor(1.0);
  const auto optimizer = make_optimizer(a, run.optimizer, run.options, run.decay, run.rates);
  const auto schedule = optim::make_schedule(
      run.schedule,
      {.lr = run.options.lr, .warmup_steps = run.warmup, .total_steps = run.steps, .kwargs_json = run.schedule_kwargs});
  const auto batches = io::open_safetensors(run.batches.string());
  const json& expected = run.expect.at(rows_key);
  Comparison table;
  for (const char* key : {"loss", "grad_norm", "lr"}) table.require_count(key, expected.at(key).size(), run.steps);
  if (lacks_penalty(run, expected)) a.model->set_input_adapter(nullptr);
  const bool final_state = mean == LossMean::kTokens;  // the folder's final weights belong to these rows
  compare_trainable(table, run, a);
  if (final_state) compare_logits(table, run, "init", *batches, a, *group);
  a.model->train();
  for (std::int64_t step = 0; step < run.steps; ++step) {
    models::ModelInput in = batch_of(*batches, step, *group, mean, *a.model);
    in.want_logits = false;
    const at::Tensor loss = (*a.model)(in).loss;
    loss.backward();
    const double value = train::sum_over_ranks(*group, loss.item<double>());
    if (step == 0 && final_state) compare_first_gradients(table, run, a);
    const double norm = model.clip_grad_norm(run.clip > 0 ? run.clip : std::numeric_limits<double>::infinity());
    const double lr = schedule->lr(step);
    const auto at = static_cast<std::size_t>(step);
    table.add(fmt::format("loss step {}", step), value, expected.at("loss").at(at).get<double>(),
              run.tolerances.loss(step, run.steps));
    table.add(fmt::format("grad_norm step {}", step), norm, expected.at("grad_norm").at(at).get<double>(),
              run.tolerances.norm);
    table.add(fmt::format("lr step {}", step), lr, expected.at("lr").at(at).get<double>(), 1e-12);
    optimizer->set_lr(lr);
    optimizer->step();
    compare_allocation(table, run, step, *optimizer);
    optimizer->zero_grad();
  }
  if (final_state) {
    compare_final(table, run, a, *optimizer);
    compare_trained(table, run, a);
    if (run.peft) compare_merged(table, run, a, options.fsdp.device);
    compare_logits(table, run, "final", *batches, a, *group);
  }
  table.merge(*group);
  out << fmt::format("{} ({}, {} steps, {} rank{}, {})\n", run.folder.lexically_normal().filename().string(),
                     run.peft ? "adapter" : "full fine-tuning", run.steps, group->size(), group->size() == 1 ? "" : "s",
                     rows_key);
  if (final_state) print_missing(run, out);
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

}  // namespace tessera::verify
