// How much of communication is hidden behind computation: a stack of linear layers, a unit each, sharded in the copy
// form. Prints the time of a step, of its computation alone, of its communication alone, and
// step / max(computation, communication). Start one process per rank with the usual variables (bench/micro/overlap.sh
// does, on one host and between two network namespaces with a limited rate):
//   for r in 0 1; do RANK=$r WORLD_SIZE=2 MASTER_PORT=29500 OMP_NUM_THREADS=1 ./overlap_bench [--width 1024] [--units
//   16]
//     [--rows 256] [--device_ms 0] [--steps 5] & done; wait
// --hybrid 1: HYBRID_SHARD with one rank on each host. --device_ms T: a unit's forward waits for T ms and its backward
// for 2 T, as if another device computed; --rows 1 then.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>

#include "tessera/fsdp/fully_shard.h"
#include "tessera/tensor/random.h"

using namespace tessera;

namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

struct Elsewhere : torch::autograd::Function<Elsewhere> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, double ms) {
    context->saved_data["ms"] = ms;
    std::this_thread::sleep_for(Milliseconds(ms));
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    std::this_thread::sleep_for(Milliseconds(2 * context->saved_data["ms"].toDouble()));
    return {grads[0], at::Tensor()};
  }
};

struct Layer : nn::Layer {
  Layer(std::int64_t width, double device_ms) : device_ms(device_ms) {
    weight = register_parameter("weight", at::randn({width, width}) * 0.02);
  }
  std::string class_name() const override { return "Layer"; }
  at::Tensor forward_impl(at::Tensor x) override {
    auto y = x + at::linear(x, weight);
    return device_ms > 0 ? Elsewhere::apply(y, device_ms) : y;
  }
  at::Tensor weight;
  double device_ms;
};

struct Net : nn::Layer {
  Net(int units, std::int64_t width, double device_ms) {
    for (int i = 0; i < units; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), std::make_shared<Layer>(width, device_ms)));
  }
  std::string class_name() const override { return "Net"; }
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& layer : layers) x = (*layer)(x);
    return x;
  }
  std::vector<std::shared_ptr<Layer>> layers;
};

struct Job {
  std::int64_t width = 1024, rows = 256;
  int units = 16, steps = 5;
  double device_ms = 0;
  bool hybrid = false;
};

Job parse(int argc, char** argv) {
  std::map<std::string, double> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = std::atof(argv[i + 1]);
  const auto of = [&](const char* name, double otherwise) { return given.count(name) ? given[name] : otherwise; };
  Job job;
  job.width = static_cast<std::int64_t>(of("--width", 1024));
  job.rows = static_cast<std::int64_t>(of("--rows", 256));
  job.units = static_cast<int>(of("--units", 16));
  job.steps = static_cast<int>(of("--steps", 5));
  job.device_ms = of("--device_ms", 0);
  job.hybrid = of("--hybrid", 0) > 0;
  return job;
}

/// The median over steps of the slowest rank, after one step that warms up.
double median_ms(comm::Communicator& world, int steps, const std::function<void()>& step) {
  std::vector<double> all;
  for (int i = 0; i <= steps; ++i) {
    world.barrier();
    const auto begin = std::chrono::steady_clock::now();
    step();
    const auto ms = at::full({1}, Milliseconds(std::chrono::steady_clock::now() - begin).count(), at::kDouble);
    world.all_reduce(ms, comm::ReduceOp::kMax)->wait();
    if (i > 0) all.push_back(ms.item<double>());
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

double train_ms(const std::shared_ptr<comm::Communicator>& world, const Job& job, fsdp::FsdpOptions options,
                bool communicates) {
  manual_seed(1);
  Net net(job.units, job.width, job.device_ms);
  options.wrap = fsdp::wrap_classes({"Layer"});
  auto sharded = fsdp::fully_shard(net, communicates ? world : comm::make_solo(), std::move(options));
  const auto x = at::randn({job.rows, job.width}).set_requires_grad(true);
  return median_ms(*world, job.steps, [&] {
    net(x).sum().backward();
    sharded->zero_grad();
  });
}

/// What a step moves: each unit is gathered for its forward and for its backward, and its gradient is reduced; hybrid,
/// with one rank on each host, the gradient is summed alone.
double communication_ms(comm::Communicator& world, const Job& job) {
  const auto numel = job.width * job.width;
  const auto whole = at::ones({numel}), slice = at::ones({numel / world.size()});
  return median_ms(world, job.steps, [&] {
    for (int i = 0; job.hybrid && i < job.units; ++i) world.all_reduce(whole, comm::ReduceOp::kSum)->wait();
    if (job.hybrid) return;
    for (int i = 0; i < 2 * job.units; ++i) world.all_gather(whole, slice)->wait();
    for (int i = 0; i < job.units; ++i) world.reduce_scatter(slice, whole)->wait();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const Job job = parse(argc, argv);
  const auto world = comm::connect();
  using fsdp::BackwardPrefetch, fsdp::GatherForm, fsdp::ShardingStrategy;
  const auto strategy = job.hybrid ? ShardingStrategy::kHybridShard : ShardingStrategy::kFullShard;
  const auto form = job.hybrid ? GatherForm::kAuto : GatherForm::kCopy;
  const auto step = train_ms(world, job, {.strategy = strategy, .gather = form, .forward_prefetch = true}, true);
  const auto waits =
      train_ms(world, job, {.strategy = strategy, .gather = form, .backward_prefetch = BackwardPrefetch::kNone}, true);
  const auto computation = train_ms(world, job, {.strategy = ShardingStrategy::kNoShard}, false);
  const auto communication = communication_ms(*world, job);
  if (world->rank() == 0)
    std::printf(
        R"({"backend": "%s", "ranks": %d, "width": %lld, "units": %d, "rows": %lld, "device_ms": %.1f, "computation_ms": %.1f, "communication_ms": %.1f, "step_ms": %.1f, "without_prefetch_ms": %.1f, "step_of_max": %.3f})"
        "\n",
        world->backend().c_str(), world->size(), static_cast<long long>(job.width), job.units,
        static_cast<long long>(job.rows), job.device_ms, computation, communication, step, waits,
        step / std::max(computation, communication));
  return 0;
}
