// How often a training step waits for the device where all state stays there (fsdp::StateOn::kDevice): once, however
// many batches and layers there are. The device is a made-up one.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/model.h"
#include "peft/adapter_config.h"
#include "peft/apply.h"
#include "support/fake_device.h"
#include "support/temp_folder.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/optim/factory.h"
#include "train/trainer.h"

namespace tessera::verify {
namespace {

struct WaitsCase {
  std::string model;
  std::string inputs;  // "padded", "holes", "documents"
  at::ScalarType dtype = at::kFloat;
  bool recompute = false;
  std::string optimizer = "adamw_torch";
  std::string adapter = {};  // adapter_config.json; empty: all weights train
};

void PrintTo(const WaitsCase& c, std::ostream* out) {
  *out << c.model << ", " << c.inputs << ", " << c10::toString(c.dtype) << (c.recompute ? ", recomputed" : "") << ", "
       << c.optimizer << c.adapter;
}

/// The same batch again and again, on the host, as data sets give theirs.
class HostBatches final : public train::Trainable {
 public:
  HostBatches(models::Model& model, models::ModelKind kind, const std::string& inputs) : model_(model) {
    in_.input_ids = (torch::arange(24, at::kLong).view({3, 8}) * 7).remainder(17) + 3;
    if (inputs == "padded")
      in_.attention_mask = torch::arange(8).lt(torch::tensor({8, 5, 6}).unsqueeze(1)).to(at::kLong);
    if (inputs == "holes") in_.attention_mask = torch::arange(24).view({3, 8}).remainder(5).ne(2).to(at::kLong);
    if (inputs == "documents")
      in_.position_ids = torch::arange(8).remainder(3).unsqueeze(0).expand({3, 8}).contiguous();
    in_.labels = kind == models::ModelKind::kSeq2Seq                  ? torch::arange(15, at::kLong).view({3, 5}) + 3
                 : kind == models::ModelKind::kSequenceClassification ? torch::tensor({1, 0, 1}, at::kLong)
                                                                      : in_.input_ids.clone();
    if (in_.attention_mask.defined() && in_.labels.sizes() == in_.input_ids.sizes())
      in_.labels.masked_fill_(in_.attention_mask.eq(0), -100);
    in_.row_ids = torch::tensor({7, 70, 700}, at::kLong);
    in_.want_logits = false;
  }
  std::int64_t batches_per_epoch() const override { return 2; }
  std::int64_t rows(std::int64_t) const override { return 3; }
  double loss_tokens(std::int64_t, std::int64_t) override { return 20; }
  std::int64_t input_tokens(std::int64_t, std::int64_t) override { return 24; }
  void set_training(bool training) override { model_.train(training); }
  at::Tensor loss(std::int64_t, std::int64_t, double normalizer) override {
    auto in = in_;
    in.loss_normalizer = normalizer;
    in.loss_scale = loss_scale();
    return model_(std::move(in)).loss;
  }

 private:
  models::Model& model_;
  models::ModelInput in_;
};

class StepWaits : public testing::TestWithParam<WaitsCase> {
 protected:
  static std::shared_ptr<models::Model> random_model(models::ModelConfig& config) {
    const test::TempFolder changed("step_waits");
    auto json = nlohmann::json::parse(
        std::ifstream(std::string(TESSERA_TEST_DATA) + "/goldens/A_models/" + GetParam().model + "/config.json"));
    for (const auto* key : {"attention_dropout", "dropout_rate", "hidden_dropout_prob", "attention_probs_dropout_prob"})
      if (json.contains(key)) json[key] = 0.1;
    std::ofstream(changed.path() + "/config.json") << json.dump();
    auto model = models::build_model(changed.path(), &config);
    models::init_weights(*model, 3);
    if (GetParam().adapter.empty()) return model;
    std::ofstream(changed.path() + "/adapter_config.json") << GetParam().adapter;
    const auto report = peft::apply_adapter(*model, config, *peft::read_adapter_config(changed.path()));
    const auto init = peft::adapter_init(*model, *report.method, 7);
    for (const auto& item : model->named_parameters()) init(item.key(), item.value());
    peft::initialise_from_weights(*model, *report.method, 7);
    return model;
  }

  /// Of the steps behind the first, which may make tables.
  static std::vector<std::int64_t> waits_of_steps(std::shared_ptr<comm::Communicator> group) {
    const auto& c = GetParam();
    models::ModelConfig config;
    const auto model = random_model(config);
    fsdp::FsdpOptions options{.wrap = fsdp::wrap_classes(config.no_split_classes)};
    options.device = test::fake_device();
    options.state_on = fsdp::StateOn::kDevice;
    if (c.dtype != at::kFloat) options.precision = {.param_dtype = c.dtype, .output_dtype = at::kFloat};
    if (c.recompute) options.activation_checkpointing = fsdp::same_as_wrap();
    const auto sharded = fsdp::fully_shard(*model, group, options);
    const auto optimizer = optim::make_optimizer(c.optimizer, {.lr = 1e-3}, sharded->parameters(),
                                                 fsdp::parameter_slices(*sharded), sharded->shard_group());
    HostBatches batches(*model, config.kind, c.inputs);
    train::TrainerOptions how;
    how.max_steps = 3;
    how.gradient_accumulation_steps = 2;
    how.max_grad_norm = 0.5;
    how.scale_loss = c.dtype == at::kHalf;
    train::Trainer trainer(how, batches, *sharded, *optimizer);
    std::vector<std::int64_t> waits;
    std::int64_t before = 0;
    train::TrainerCallbacks callbacks;
    callbacks.on_step = [&](const train::StepReport& step) {
      const auto now = test::fake_device_waits();
      EXPECT_TRUE(std::isfinite(step.loss) && step.grad_norm > 0) << step.loss << ", " << step.grad_norm;
      if (step.step > 1) waits.push_back(now - before);
      before = now;
    };
    trainer.run(callbacks);
    return waits;
  }
};

TEST_P(StepWaits, OnceForTheNorm) {
  // float16 waits for the losses, for what its scaler finds, and then for the norm.
  const std::int64_t expected = GetParam().dtype == at::kHalf ? 3 : 1;
  for (const bool has_kernels : {false, true}) {
    std::optional<test::FakeKernels> kernels;
    if (has_kernels) kernels.emplace();
    comm::run_threads(1, [&](std::shared_ptr<comm::Communicator> group) {
      EXPECT_EQ(waits_of_steps(group), (std::vector<std::int64_t>{expected, expected})) << has_kernels;
    });
  }
}

const char* const kWaitingLora =
    R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1,
        "target_modules": ["q_proj", "v_proj"], "trainable_token_indices": [5, 7]})";
const char* const kWaitingBoft =
    R"({"peft_type": "BOFT", "task_type": "CAUSAL_LM", "boft_block_size": 4, "boft_block_num": 0,
        "boft_dropout": 0.1, "target_modules": ["q_proj", "v_proj"]})";
const char* const kWaitingPrompt =
    R"({"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 3})";

INSTANTIATE_TEST_SUITE_P(
    Families, StepWaits,
    testing::Values(
        WaitsCase{"llama_gqa_rope3", "padded"}, WaitsCase{"llama_gqa_rope3", "documents"},
        WaitsCase{"llama_gqa_rope3", "padded", at::kBFloat16}, WaitsCase{"llama_gqa_rope3", "documents", at::kBFloat16},
        WaitsCase{"llama_gqa_rope3", "padded", at::kHalf}, WaitsCase{"llama_gqa_rope3", "holes", at::kFloat, true},
        WaitsCase{"gpt2", "padded"}, WaitsCase{"opt_postnorm_proj", "padded"}, WaitsCase{"gemma3", "documents"},
        WaitsCase{"mixtral", "padded", at::kBFloat16}, WaitsCase{"t5_v1_0", "padded"},
        WaitsCase{"t5_v1_1", "holes", at::kBFloat16}, WaitsCase{"t5_v1_0", "padded", at::kFloat, true},
        WaitsCase{"roberta_cls", "padded"}, WaitsCase{"roberta_cls", "holes", at::kBFloat16},
        WaitsCase{"bert_mlm", "padded"}, WaitsCase{"deberta_v2_cls", "padded"}, WaitsCase{"deberta_v2_mlm", "padded"},
        WaitsCase{"llama_gqa_rope3", "padded", at::kFloat, false, "adamw_bnb_8bit"},
        WaitsCase{"llama_gqa_rope3", "padded", at::kBFloat16, false, "adamw_torch", kWaitingLora},
        WaitsCase{"llama_gqa_rope3", "padded", at::kFloat, false, "adamw_torch", kWaitingBoft},
        WaitsCase{"llama_gqa_rope3", "padded", at::kFloat, false, "adamw_torch", kWaitingPrompt}));

}  // namespace
}  // namespace tessera::verify
