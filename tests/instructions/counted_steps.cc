// Training steps of tiny models, to be counted by valgrind's callgrind: what a step costs beside its arithmetic
// (dispatch, autograd's graph, units and hooks, optimizer). tests/instructions/count.sh runs it.
//
//   counted_steps DATA_FOLDER [all]    (tests/data/fsdp_runs; all: of every PEFT method, too, not of LoRA alone)
//
// Prints what counts depend on, then for each job "NAME STEPS" once for each call of tessera_counted_steps(), which is
// where callgrind is told to look.
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "estimate/adapter_formulas.h"
#include "peft/adapter_config.h"
#include "peft/method.h"
#include "tasks/assemble.h"
#include "tessera/comm/communicator.h"
#include "tessera/optim/optimizer.h"
#include "tessera/tensor/allocator.h"
#include "unit/tasks/registry_settings.h"

/// Named, never inlined, and seen from outside: callgrind finds it by this name.
extern "C" [[gnu::noinline, gnu::visibility("default")]] void tessera_counted_steps(const std::function<void()>& step,
                                                                                    int count) {
  for (int i = 0; i < count; ++i) step();
}

namespace tessera::test {
namespace {

struct InstructionJob {
  std::string name, model;
  nlohmann::json peft = {};  // the keys of adapter_config.json; null: all weights train
};

/// Methods that sit in layers do so in all of them.
std::vector<InstructionJob> jobs_of(const std::vector<std::string>& methods) {
  std::vector<InstructionJob> jobs = {{"llama_full", "base_llama"}, {"t5_full", "base_t5"}};
  const auto in_layers = estimate::layer_methods();
  for (const auto& type : methods) {
    auto keys = tasks::settings_of(type);
    keys["peft_type"] = type;
    if (std::find(in_layers.begin(), in_layers.end(), type) != in_layers.end()) keys["target_modules"] = "all-linear";
    if (type == "IA3") keys["feedforward_modules"] = {"down_proj"};
    std::string name = "llama_" + type;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    jobs.push_back({name, "base_llama", keys});
  }
  return jobs;
}

constexpr int kWarmUp = 2, kSteps = 2;

void count(const InstructionJob& job, const std::string& data) {
  tasks::AssembleOptions options;
  options.model_folder = data + "/" + job.model;
  if (!job.peft.is_null()) options.method = peft::read_peft_keys(job.peft, job.name);
  auto model = tasks::assemble(options, comm::make_solo());
  model.model->train();
  optim::AdamW optimizer(model.sharded->parameters(), optim::AdamWOptions{.lr = 1e-4, .weight_decay = 0.0});
  const auto rows = (at::arange(2 * 16) * 7 % 41 + 3).view({2, 16});
  const std::function<void()> step = [&] {
    models::ModelInput in;
    in.input_ids = in.labels = rows;
    in.want_logits = false;
    torch::autograd::backward({(*model.model)(in).loss}, {});
    model.sharded->clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int i = 0; i < kWarmUp; ++i) step();
  for (const int steps : {kSteps, 2 * kSteps}) {
    tessera_counted_steps(step, steps);
    std::cout << job.name << " " << steps << "\n";
  }
}

/// As this process sees them: valgrind presents another processor than there is.
std::string processor_features() {
  std::string out;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) out += " avx2";
  if (__builtin_cpu_supports("fma")) out += " fma";
  if (__builtin_cpu_supports("bmi2")) out += " bmi2";
  if (__builtin_cpu_supports("avx512f")) out += " avx512f";
#endif
  return out;
}

int count_all(const std::string& data, bool every_method) {
  tensor::use_step_allocator();
  at::set_num_threads(1);
  std::cout << "libtorch " << TORCH_VERSION << ", " << at::get_cpu_capability() << ", compiler " << __VERSION__
            << ", processor" << processor_features() << "\n";
  for (const auto& job : jobs_of(every_method ? peft::method_types() : std::vector<std::string>{"LORA"}))
    count(job, data);
  return 0;
}

}  // namespace
}  // namespace tessera::test

int main(int argc, char** argv) {
  try {
    const bool every_method = argc == 3 && std::string(argv[2]) == "all";
    if (argc == 2 || every_method) return tessera::test::count_all(argv[1], every_method);
    std::cerr << "usage: counted_steps DATA_FOLDER [all]\n";
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
  }
  return 1;
}
