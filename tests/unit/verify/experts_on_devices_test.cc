// Experts of a mixture that stays sharded on devices: products of all experts as one give the CPU's gradients, which
// computes expert by expert. The devices are fake ones.
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "peft/adapter_config.h"
#include "peft/apply.h"
#include "quant/four_bit_codec.h"
#include "support/fake_device.h"
#include "support/temp_folder.h"
#include "tessera/fsdp/fully_shard.h"

namespace tessera::verify {
namespace {

/// Calls of an operator while it lives.
class Calls {
 public:
  explicit Calls(const char* name) {
    wanted() = name;
    count() = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& f) {
                                      if (f.name() == wanted()) ++count();
                                      return std::unique_ptr<at::ObserverContext>();
                                    }).scopes({at::RecordScope::FUNCTION}));
  }
  ~Calls() { at::removeCallback(handle_); }
  static std::atomic<int>& count() {
    static std::atomic<int> calls{0};
    return calls;
  }

 private:
  static std::string& wanted() {
    static std::string name;
    return name;
  }
  at::CallbackHandle handle_;
};

struct MixtureRun {
  std::string adapter = {};  // adapter_config.json; empty: all weights train
  std::string frozen = {};   // parameters with this in their name
  int ranks = 1;
  bool recompute = false;
  bool packed = false;  // experts
};

struct Trained {
  double loss = 0, norm = 0;
  std::map<std::string, at::Tensor> gradients;
};

Trained train(const MixtureRun& how, bool on_devices) {
  const test::TempFolder folder("mixture");
  auto config =
      nlohmann::json::parse(std::ifstream(std::string(TESSERA_TEST_DATA) + "/goldens/A_models/mixtral/config.json"));
  config.update({{"hidden_size", 32}, {"num_local_experts", 20}, {"num_hidden_layers", 1}});
  std::ofstream(folder.path() + "/config.json") << config.dump();
  if (!how.adapter.empty()) std::ofstream(folder.path() + "/adapter_config.json") << how.adapter;
  Trained out;
  std::mutex first;
  comm::run_threads(how.ranks, [&](std::shared_ptr<comm::Communicator> group) {
    models::ModelConfig family;
    const auto model = models::build_model(folder.path(), &family);
    models::init_weights(*model, 3);
    for (const auto& item : model->named_modules("", /*include_self=*/false))
      if (auto* linear = dynamic_cast<nn::Linear*>(item.value().get());
          how.packed && linear != nullptr && item.key().find(".experts.") != std::string::npos)
        linear->pack(quant::four_bit_codec({.block = 32}));
    if (!how.adapter.empty()) {
      const auto report = peft::apply_adapter(*model, family, *peft::read_adapter_config(folder.path()));
      const auto init = peft::adapter_init(*model, *report.method, 7);
      for (const auto& item : model->named_parameters()) init(item.key(), item.value());
    }
    for (const auto& item : model->named_parameters()) {
      const at::NoGradGuard no_grad;
      // Rounding must send no token to another expert; and B begins with zeros, which hide A's gradient.
      if (item.key().ends_with("moe.gate.weight")) item.value().mul_(40);
      if (item.key().find("lora_B") != std::string::npos) item.value().add_(0.05);
    }
    for (const auto& item : model->named_parameters())
      if (!how.frozen.empty() && item.key().find(how.frozen) != std::string::npos)
        item.value().set_requires_grad(false);
    model->train();
    fsdp::FsdpOptions options{.wrap = fsdp::wrap_classes(family.no_split_classes)};
    options.precision = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    if (how.recompute) options.activation_checkpointing = fsdp::same_as_wrap();
    if (on_devices) {
      options.device = test::fake_device(group->rank());
      options.state_on = fsdp::StateOn::kDevice;
    }
    const auto sharded = fsdp::fully_shard(*model, group, options);
    models::ModelInput in;
    in.input_ids = (at::arange(24, at::kLong).view({3, 8}) * 7 + group->rank()).remainder(17).to(options.device);
    in.labels = in.input_ids.clone();
    in.row_ids = at::arange(3, at::kLong) * 2 + group->rank();
    const auto loss = (*model)(in).loss;
    loss.backward();
    std::map<std::string, at::Tensor> gradients;
    sharded->visit_full_grads([&](const std::string& name, const at::Tensor& t) { gradients[name] = t.clone(); });
    const auto norm = sharded->clip_grad_norm(1e9);
    const std::lock_guard lock(first);
    if (group->rank() == 0) out = {loss.item<double>(), norm, std::move(gradients)};
  });
  return out;
}

void expect_the_cpus_gradients(const MixtureRun& how) {
  const auto here = train(how, false);
  int calls = 0;
  const auto there = [&] {
    const Calls counted("aten::_grouped_mm");
    auto run = train(how, true);
    calls = Calls::count();
    return run;
  }();
  EXPECT_GT(calls, 0) << "experts were computed one by one";
  EXPECT_NEAR(there.loss, here.loss, 2e-2 * here.loss);
  EXPECT_NEAR(there.norm, here.norm, 2e-2 * here.norm);
  ASSERT_EQ(there.gradients.size(), here.gradients.size());
  double largest = 0;
  for (const auto& [name, t] : here.gradients) largest = std::max(largest, t.abs().max().item<double>());
  for (const auto& [name, t] : here.gradients)
    EXPECT_LE((there.gradients.at(name) - t).abs().max().item<double>(), 5e-2 * largest) << name;
}

const char* const kLora = R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16,
                              "target_modules": ["w1", "w2", "w3"]})";
const char* const kDropout = R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16,
                                 "lora_dropout": 0.5, "target_modules": ["w1", "w2", "w3"]})";

TEST(ExpertsOnDevices, TrainAllWeights) {
  for (const int ranks : {1, 2})
    for (const bool recompute : {false, true}) expect_the_cpus_gradients({.ranks = ranks, .recompute = recompute});
}

TEST(ExpertsOnDevices, TrainLora) {
  for (const int ranks : {1, 2}) expect_the_cpus_gradients({.adapter = kLora, .ranks = ranks});
}

TEST(ExpertsOnDevices, DropWhatTheCpuDrops) {
  for (const int ranks : {1, 2})
    for (const bool recompute : {false, true})
      expect_the_cpus_gradients({.adapter = kDropout, .ranks = ranks, .recompute = recompute});
  const test::FakeKernels kernels;
  expect_the_cpus_gradients({.adapter = kDropout});
}

TEST(ExpertsOnDevices, TrainLoraOverFourBitExperts) {
  for (const int ranks : {1, 2})
    expect_the_cpus_gradients({.adapter = kLora, .ranks = ranks, .recompute = true, .packed = true});
}

TEST(ExpertsOnDevices, PassGradientsOnWhereTheyAreFrozen) {
  for (const int ranks : {1, 2}) expect_the_cpus_gradients({.frozen = ".experts.", .ranks = ranks});
}

}  // namespace
}  // namespace tessera::verify
