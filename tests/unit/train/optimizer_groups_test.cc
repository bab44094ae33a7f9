// What Trainer's optimizer does to parameters by what they are called and whose they are.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "nn/layers/container.h"
#include "tessera/comm/communicator.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/nn/init.h"
#include "tessera/nn/norm.h"
#include "train/training_arguments.h"

namespace tessera::train {
namespace {

/// Everything is one, and so are gradients.
struct Named : nn::Layer {
  Named() {
    const auto add = [](torch::nn::Module& to, const std::string& name, at::IntArrayRef sizes) {
      to.register_parameter(name, at::ones(sizes).set_requires_grad(true));
    };
    const auto container = [](torch::nn::Module& to, const std::string& name) {
      return to.register_module(name, std::make_shared<nn::Container>(name));
    };
    register_module("ln_f", std::make_shared<nn::LayerNorm>(3, 1e-5));
    register_module("norm", std::make_shared<nn::RmsNorm>(3, 1e-5));
    const auto q_proj = container(*this, "q_proj");
    add(*q_proj, "weight", {2, 3});
    add(*q_proj, "bias", {2});
    add(*q_proj, "vera_lambda_b", {2});
    add(*q_proj, "fourierft_spectrum", {5});
    add(*q_proj, "lora_magnitude_vector", {2});
    add(*q_proj, "lora_B", {2, 3});
    add(*container(*this, "position_bias"), "weight", {2, 3});
    const auto encoder = container(*container(*this, "prompt_encoder"), "default");
    add(*container(*encoder, "embedding"), "weight", {64, 64});
    add(*container(*encoder, "transform"), "weight", {64, 64});
    nn::reset_parameters(*this, 0);
    for (auto& p : parameters()) p.detach().fill_(1);
  }
  std::string class_name() const override { return "Named"; }

 protected:
  at::Tensor forward_impl(at::Tensor x) override {
    for (auto& p : named_parameters()) x = x + p.value().sum();
    return x.sum();
  }
};

/// What a step of SGD decays.
std::map<std::string, bool> decayed(TrainingArguments a) {
  a.optim = "sgd";
  a.learning_rate = 0.5;
  a.weight_decay = 0.5;
  Named model;
  const auto sharded = fsdp::fully_shard(model, comm::make_solo(), {});
  const auto optimizer = make_optimizer(a, model, *sharded);
  model(at::full({1}, 0)).backward();
  optimizer->step();
  sharded->mark_updated();
  std::map<std::string, bool> found;
  sharded->visit_full([&](const std::string& name, const at::Tensor& t) {
    found[name] = t.view(-1)[0].item<float>() == 0.25f;  // 1 - 0.5 (1 + 0.5), and without decay 1 - 0.5
  });
  return found;
}

TEST(OptimizerGroups, DecayWhatTrainerDecays) {
  TrainingArguments a;
  // Names that get_decay_parameter_names() of transformers 4.57.3 has for such a model: vectors that are no norm, too.
  const std::map<std::string, bool> expected = {{"q_proj.lora_B", true},
                                                {"position_bias.weight", false},
                                                {"ln_f.weight", false},
                                                {"ln_f.bias", false},
                                                {"norm.weight", false},
                                                {"q_proj.weight", true},
                                                {"q_proj.bias", false},
                                                {"q_proj.vera_lambda_b", true},
                                                {"q_proj.fourierft_spectrum", true},
                                                {"q_proj.lora_magnitude_vector", true},
                                                {"prompt_encoder.default.embedding.weight", true},
                                                {"prompt_encoder.default.transform.weight", true}};
  EXPECT_EQ(decayed(a), expected);
}

// create_loraplus_optimizer() of peft 0.21.2: of the fast group biases and LayerNorms are not decayed, but RMSNorms.
TEST(OptimizerGroups, DecayWithLoraPlusWhatPeftDecays) {
  TrainingArguments a;
  a.rates.loraplus_lr_ratio = 1;
  const std::map<std::string, bool> expected = {{"q_proj.lora_B", true},
                                                {"position_bias.weight", true},
                                                {"ln_f.weight", false},
                                                {"ln_f.bias", false},
                                                {"norm.weight", true},
                                                {"q_proj.weight", true},
                                                {"q_proj.bias", false},
                                                {"q_proj.vera_lambda_b", true},
                                                {"q_proj.fourierft_spectrum", true},
                                                {"q_proj.lora_magnitude_vector", true},
                                                {"prompt_encoder.default.embedding.weight", true},
                                                {"prompt_encoder.default.transform.weight", true}};
  EXPECT_EQ(decayed(a), expected);
}

TEST(OptimizerGroups, RowsOfPromptsKeepTheirStateInFloat) {
  TrainingArguments a;
  a.optim = "adamw_8bit";
  Named model;
  const auto sharded = fsdp::fully_shard(model, comm::make_solo(), {});
  const auto optimizer = make_optimizer(a, model, *sharded);
  std::map<std::string, at::ScalarType> dtypes;
  for (const auto& s : optimizer->state())
    if (s.state == "state1") dtypes[s.parameter] = s.local.scalar_type();
  EXPECT_EQ(dtypes.at("prompt_encoder.default.embedding.weight"), at::kFloat);
  EXPECT_EQ(dtypes.at("prompt_encoder.default.transform.weight"), at::kByte);
}

}  // namespace
}  // namespace tessera::train
