// Steps of causal language model training on fixed token rows: the same job as bench/peers/causal_lm.py.
//
//   tessera launch --num_processes 2 --use_cpu build/release/bench/train_bench --model FOLDER --tokens FILE
//       [--adapter FOLDER] [--precision bf16] --out metrics.jsonl
//
// --length N in place of --tokens makes rows of N pseudo-random tokens; --lora_r in place of --adapter a new LoRA
// adapter of all linear layers; --load_in_4bit packs the base in NF4.
//
// Rank 0 appends one JSON line a step ("loss", the mean over ranks; "step_seconds": forward, backward, optimizer,
// zero_grad of rank 0; "cpu_seconds": of its thread; "time"), and a last one with the rate of matrix products that a
// rank gets while all ranks multiply, by the clock and by its processor time.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "config/options.h"
#include "e2e/memory_watch.h"
#include "nn/ops/gemm.h"
#include "report/metrics.h"
#include "tasks/assemble.h"
#include "tasks/fsdp_options.h"
#include "tasks/lora_flags.h"
#include "tasks/memory_plan.h"
#include "tasks/quant_flags.h"
#include "tensor/device_memory.h"
#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/io/tensor_source.h"
#include "tessera/optim/factory.h"
#include "tessera/optim/optimizer.h"
#include "tessera/tensor/allocator.h"

namespace tessera::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct Options {
  std::string model, tokens, adapter, precision = "fp32", strategy = "FULL_SHARD", offload_folder,
                                      optim = "adamw_torch", out, trace;
  std::int64_t batch = 2, steps = 10, length = 0, lora_r = 0;
  double learning_rate = 1e-4, clip = 0, lora_dropout = 0;
  std::string device = "cpu";
  bool checkpointing = false, memory = false, offload_params = false;
  tasks::QuantFlags quant;
};

bool parse(Options& o, const std::vector<std::string>& args) {
  config::OptionTable table("train_bench", "times training steps on fixed rows of tokens");
  table.add(&o.model, {"--model"}, "model folder").required();
  table.add(&o.tokens, {"--tokens"}, "safetensors with int64 input_ids [rows, length]");
  table.add(&o.length, {"--length"}, "of made-up rows, where no --tokens are given");
  table.add(&o.adapter, {"--adapter"}, "LoRA adapter to start from; without one all weights are trained");
  table.add(&o.lora_r, {"--lora_r"}, "or a new one of this rank, on all linear layers");
  table.add(&o.lora_dropout, {"--lora_dropout"}, "of that");
  table.add(&o.optim, {"--optim"}, "as Trainer's --optim");
  tasks::add_quant_flags(table, o.quant, "Packed weights");
  table.add(&o.precision, {"--precision"}, "bf16: fp32 masters and reductions").choices({"fp32", "bf16"});
  table.add(&o.batch, {"--batch"}, "rows of a rank in one step");
  table.add(&o.steps, {"--steps"}, "steps to run");
  table.add(&o.learning_rate, {"--lr"}, "AdamW without decay, betas 0.9 and 0.999");
  table.add(&o.clip, {"--clip"}, "largest norm of the gradients; 0: not clipped");
  table.add(&o.checkpointing, {"--activation_checkpointing"}, "recompute every block");
  table.add(&o.strategy, {"--strategy"}, "how the model is sharded")
      .choices({"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"});
  table
      .add(&o.device, {"--device"},
           "what computes; cuda: adds a line with the peak of its allocator and what the formula says, in GB")
      .choices({"cpu", "cuda"});
  table.add(&o.trace, {"--trace"}, "cuda: a file for libtorch's trace of the kernels of the last step");
  table.add(&o.offload_params, {"--offload_params"}, "cuda: all but what computes stays in host memory");
  table.add(&o.offload_folder, {"--offload_folder"}, "parameters and optimizer state in files there");
  table.add(&o.memory, {"--memory"}, "adds a line with the peak of proportional memory and what the formula says");
  table.add(&o.out, {"--out"}, "JSON Lines file to append to").required();
  if (table.parse(args) == config::ParseResult::kRun) return true;
  std::cout << table.help();
  return false;
}

/// Many different tokens: [64, length].
at::Tensor made_up_rows(std::int64_t vocabulary, std::int64_t length) {
  constexpr std::int64_t kRows = 64, kPrime = 7919;
  return at::arange(kRows * length, at::kLong).mul(kPrime).remainder(vocabulary).view({kRows, length});
}

/// Of the processor: what a step costs on a machine that others use too.
double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

class Run {
 public:
  Run(const Options& options, std::shared_ptr<comm::Communicator> group)
      : o_(options), group_(std::move(group)), file_(group_->rank() == 0 ? o_.out : "") {
    tasks::AssembleOptions a;
    a.model_folder = o_.model;
    a.adapter_folder = o_.adapter;
    if (o_.lora_r > 0) {
      tasks::LoraFlags lora;
      lora.lora_r = o_.lora_r;
      lora.lora_dropout = o_.lora_dropout;
      lora.lora_target_modules = {"all-linear"};
      a.method = tasks::new_adapter(lora, "CAUSAL_LM", o_.model);
    }
    a.quantization = o_.quant.quantization();
    a.fsdp.wrap = nullptr;
    a.fsdp.strategy = strategy();
    a.fsdp.offload_folder = o_.offload_folder;
    config::AccelerateConfig settings;
    settings.fsdp.offload_params = o_.offload_params;
    a.fsdp.device = tasks::compute_device(o_.device, settings);
    a.fsdp.state_on = o_.offload_params ? fsdp::StateOn::kHost : fsdp::StateOn::kDevice;
    if (o_.precision == "bf16") a.fsdp.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    if (o_.checkpointing) a.fsdp.activation_checkpointing = fsdp::same_as_wrap();
    if (o_.length == 0) rows_ = io::read_tensor(*io::open_safetensors(o_.tokens), "input_ids");
    a.before_sharding = [this](const tasks::Assembled& model, const fsdp::FsdpOptions& options) {
      const auto length = o_.length > 0 ? o_.length : rows_.size(1);
      const tasks::PlanSettings settings{
          .model_folder = o_.model, .optim = o_.optim, .batch = {.rows = o_.batch, .length = length}};
      plan_ = tasks::plan_rank(model, options, settings, *group_);
      device_plan_ = tasks::plan_device(model, options, settings, *group_);
    };
    model_ = tasks::assemble(a, group_);
    model_.model->train();
    if (o_.length > 0) rows_ = made_up_rows(model_.config.vocab_size, o_.length);
    optimizer_ =
        optim::make_optimizer(o_.optim, {.lr = o_.learning_rate, .weight_decay = 0.0}, model_.sharded->parameters(),
                              fsdp::parameter_slices(*model_.sharded), model_.sharded->shard_group());
    optimizer_->keep_state_in(model_.sharded->offload_store());
  }

  void run() {
    for (std::int64_t step = 0; step < o_.steps; ++step) {
      const bool traced = !o_.trace.empty() && step + 1 == o_.steps;
      if (traced) start_trace();
      const auto begin = Clock::now();
      const double cpu = thread_seconds();
      const double mine = train_step(step);
      const double cpu_seconds = thread_seconds() - cpu;
      const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      file_.write({{"step", step + 1}, {"loss", mean(mine)}, {"step_seconds", seconds}, {"cpu_seconds", cpu_seconds}});
      if (traced) torch::autograd::profiler::disableProfiler()->save(o_.trace);
    }
    if (o_.device == "cuda") {
      const auto peak = tensor::peak_device_bytes(at::Device(at::kCUDA, 0)).value_or(0);
      file_.write({{"peak_device_gb", static_cast<double>(peak) / 1e9},
                   {"formula_device_gb", static_cast<double>(device_plan_.total()) / 1e9}});
    }
    if (o_.memory || o_.device == "cuda") return;
    const auto single = gemm_rate(at::kFloat), narrow = gemm_rate(at::kBFloat16);
    file_.write({{"gemm_gflops", Json{{"fp32", single.clock}, {"bf16", narrow.clock}}},
                 {"cpu_gemm_gflops", Json{{"fp32", single.cpu}, {"bf16", narrow.cpu}}}});
  }

  fsdp::ShardingStrategy strategy() const {
    if (o_.strategy == "NO_SHARD") return fsdp::ShardingStrategy::kNoShard;
    if (o_.strategy == "HYBRID_SHARD") return fsdp::ShardingStrategy::kHybridShard;
    return o_.strategy == "FULL_SHARD" ? fsdp::ShardingStrategy::kFullShard : fsdp::ShardingStrategy::kShardGradOp;
  }

  std::int64_t expected_memory() const { return plan_.total(); }

 private:
  double train_step(std::int64_t step) {
    const std::int64_t first = (step * group_->size() + group_->rank()) * o_.batch, total = rows_.size(0);
    std::vector<at::Tensor> rows;
    for (std::int64_t i = 0; i < o_.batch; ++i) rows.push_back(rows_.narrow(0, (first + i) % total, 1));
    models::ModelInput in;
    in.input_ids = in.labels = at::cat(rows);
    in.want_logits = false;
    const at::Tensor loss = (*model_.model)(in).loss;
    torch::autograd::backward({loss}, {});
    if (o_.clip > 0) model_.sharded->clip_grad_norm(o_.clip, *optimizer_);
    optimizer_->step();
    optimizer_->zero_grad();
    return loss.item<double>();
  }

  static void start_trace() {
    namespace profiler = torch::profiler::impl;
    const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
    const std::set<profiler::ActivityType> activities{profiler::ActivityType::CUDA};
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
  }

  double mean(double value) {
    double sum = 0;
    for (const auto& text : group_->all_gather_objects(std::to_string(value))) sum += std::stod(text);
    return sum / group_->size();
  }

  struct GemmRate {
    double clock, cpu;
  };

  /// The best of two shapes, each the median of 30 products.
  GemmRate gemm_rate(at::ScalarType dtype) const {
    group_->barrier();
    const auto a = gemm_rate(dtype, 512, 768, 2048), b = gemm_rate(dtype, 1024, 1024, 1024);
    return {std::max(a.clock, b.clock), std::max(a.cpu, b.cpu)};
  }

  static GemmRate gemm_rate(at::ScalarType dtype, std::int64_t m, std::int64_t k, std::int64_t n) {
    const auto a = at::randn({m, k}).to(dtype), b = at::randn({n, k}).to(dtype);
    std::vector<double> by_clock, by_cpu;
    for (int i = 0; i < 30; ++i) {
      const auto begin = Clock::now();
      const double cpu = thread_seconds();
      nn::gemm(a, b.t());
      const double gflop = 2e-9 * static_cast<double>(m * k * n);
      by_cpu.push_back(gflop / (thread_seconds() - cpu));
      by_clock.push_back(gflop / std::chrono::duration<double>(Clock::now() - begin).count());
    }
    const auto median = [](std::vector<double>& rates) {
      std::nth_element(rates.begin(), rates.begin() + 15, rates.end());
      return rates[15];
    };
    return {median(by_clock), median(by_cpu)};
  }

  const Options& o_;
  std::shared_ptr<comm::Communicator> group_;
  at::Tensor rows_;
  report::MetricsFile file_;
  estimate::RankPlan plan_, device_plan_;
  tasks::Assembled model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

int run(const std::vector<std::string>& args) {
  Options options;
  if (!parse(options, args)) return 0;
  tensor::use_step_allocator();
  auto group = comm::connect();
  nn::gemm(at::ones({64, 64}), at::ones({64, 64}));  // loads what a product needs
  const auto ranks = group->all_gather_objects(std::to_string(::getpid()));
  std::optional<MemoryWatch> watch;
  if (options.memory && group->rank() == 0) watch.emplace(ranks);
  group->barrier();
  std::optional<Run> job(std::in_place, options, group);
  job->run();
  if (watch) watch->stop();  // while every rank still holds what it shares
  group->barrier();
  const auto expected = job->expected_memory();
  job.reset();
  // What stays is the program's, but for the range of tensors, which stays at its largest.
  const auto tensors = tensor::allocator_stats();
  const auto ranges = group->all_gather_objects(std::to_string(tensor::allocator_stats().touched_bytes));
  if (watch) watch->leave_out_what_stays(ranges);
  group->barrier();
  if (!watch) return 0;
  constexpr double kMiB = 1 << 20;
  report::MetricsFile(options.out)
      .write({{"base_mib", static_cast<double>(watch->base_bytes()) / kMiB},
              {"held_mib", static_cast<double>(watch->peak_bytes()) / kMiB},
              {"private_mib", static_cast<double>(watch->private_peak_bytes()) / kMiB},
              {"tensors_mib", static_cast<double>(tensors.peak_used_bytes) / kMiB},
              {"touched_mib", static_cast<double>(tensors.touched_bytes) / kMiB},
              {"formula_mib", static_cast<double>(expected) / kMiB}});
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  try {
    return tessera::bench::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::cerr << "train_bench: " << e.what() << "\n";
    return 1;
  }
}
