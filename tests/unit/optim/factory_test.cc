#include "tessera/optim/factory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"

namespace tessera::optim {
namespace {

std::unique_ptr<Optimizer> make(const std::string& name, const std::string& args = {}, double lr = 0.1) {
  auto p = at::ones({6}).set_requires_grad(true);
  return make_optimizer(name, {.lr = lr, .optim_args = args}, {p}, whole_slices({p}), nullptr);
}

std::string message_of(const std::string& name, const std::string& args = {}) {
  try {
    make(name, args);
  } catch (const ConfigError& e) {
    return std::string(e.key) + "|" + e.what();
  }
  return "";
}

TEST(Factory, BuildsEveryNameItLists) {
  for (const auto& name : optimizer_names()) {
    const auto optimizer = make(name, name == "schedule_free_radam" ? "silent_sgd_phase=false" : "");
    optimizer->parameters()[0].mutable_grad() = at::ones({6});
    optimizer->step();
    EXPECT_TRUE((optimizer->parameters()[0].detach() < 1).all().item<bool>()) << name;
  }
}

TEST(Factory, EveryOptimizerScalesTheNextGradientsAlone) {
  for (const auto& name : optimizer_names()) {
    const auto first = make(name), second = make(name);
    const auto gradient = at::linspace(-3, 2, 6);
    for (const double factor : {0.3, 1.0}) {
      first->parameters()[0].mutable_grad() = gradient * factor;
      first->step();
      second->parameters()[0].mutable_grad() = gradient.clone();
      if (factor != 1) second->scale_next_gradients(factor);
      second->step();
    }
    const auto a = first->parameters()[0].detach(), b = second->parameters()[0].detach();
    // grokadamw clips by the norm, too: one product of both factors.
    EXPECT_TRUE(name == "grokadamw" ? at::allclose(a, b, 1e-6, 1e-7) : at::equal(a, b)) << name;
  }
}

TEST(Factory, NamesTheNearestOptimizer) {
  const auto text = message_of("adamw_torhc");
  EXPECT_NE(text.find("optim|"), std::string::npos);
  EXPECT_NE(text.find("did you mean 'adamw_torch'"), std::string::npos) << text;
  EXPECT_NE(text.find("adafactor"), std::string::npos) << text;
}

// OptimizerNames of transformers 4.57.3, without those of other devices.
TEST(Factory, BuildsEveryNameOfTrainer) {
  const auto known = optimizer_names();
  for (const char* name : {"adamw_torch",
                           "adamw_torch_fused",
                           "adamw_apex_fused",
                           "adafactor",
                           "adamw_anyprecision",
                           "adamw_torch_4bit",
                           "adamw_torch_8bit",
                           "ademamix",
                           "sgd",
                           "adagrad",
                           "adamw_bnb_8bit",
                           "adamw_8bit",
                           "ademamix_8bit",
                           "lion_8bit",
                           "lion_32bit",
                           "paged_adamw_32bit",
                           "paged_adamw_8bit",
                           "paged_ademamix_32bit",
                           "paged_ademamix_8bit",
                           "paged_lion_32bit",
                           "paged_lion_8bit",
                           "rmsprop",
                           "rmsprop_bnb",
                           "rmsprop_bnb_8bit",
                           "rmsprop_bnb_32bit",
                           "galore_adamw",
                           "galore_adamw_8bit",
                           "galore_adafactor",
                           "galore_adamw_layerwise",
                           "galore_adamw_8bit_layerwise",
                           "galore_adafactor_layerwise",
                           "lomo",
                           "adalomo",
                           "grokadamw",
                           "schedule_free_radam",
                           "schedule_free_adamw",
                           "schedule_free_sgd",
                           "apollo_adamw",
                           "apollo_adamw_layerwise",
                           "stable_adamw"})
    EXPECT_NE(std::find(known.begin(), known.end(), name), known.end()) << name;
}

TEST(Factory, SaysWhyANameOfTrainerIsRefused) {
  for (const char* name : {"adamw_torch_xla", "adamw_torch_npu_fused"})
    EXPECT_NE(message_of(name).find("another device"), std::string::npos) << name;
}

TEST(Factory, ChecksArgumentsOfTheClass) {
  EXPECT_NE(message_of("sgd", "momentun=0.9").find("did you mean 'momentum'"), std::string::npos);
  EXPECT_NE(message_of("sgd", "momentum=fast").find("expected a number for 'momentum', found 'fast'"),
            std::string::npos);
  EXPECT_NE(message_of("sgd", "nesterov=true").find("nesterov needs a momentum"), std::string::npos);
  EXPECT_NE(message_of("sgd", "momentum").find("key=value"), std::string::npos);
}

TEST(Factory, RefusesSlicesOutsideTheirTensor) {
  auto p = at::ones({6}).set_requires_grad(true);
  auto slices = whole_slices({p});
  slices[0].parameter_offset = 1;
  EXPECT_THROW(make_optimizer("sgd", {}, {p}, slices, nullptr), ConfigError);
}

TEST(Groups, RatesAndDecaysBelongToSlices) {
  auto a = at::ones({4}).set_requires_grad(true), b = at::ones({4}).set_requires_grad(true);
  for (const char* name : {"adamw_torch", "sgd", "lion_32bit", "adafactor"}) {
    at::NoGradGuard no_grad;
    a.fill_(1), b.fill_(1);
    auto slices = whole_slices({a, b});
    slices[0].weight_decay = 0.0;
    slices[1].lr_scale = 0.5;
    const auto optimizer = make_optimizer(name, {.lr = 0.1, .weight_decay = 0.5}, {a, b}, slices, nullptr);
    a.mutable_grad() = at::zeros({4}), b.mutable_grad() = at::zeros({4});
    optimizer->step();
    EXPECT_TRUE(at::equal(a.detach(), at::ones({4}))) << name;
    EXPECT_TRUE(at::allclose(b.detach(), at::full({4}, 1 - 0.05 * 0.5))) << name;
  }
}

TEST(Groups, NamesThatTrainerDoesNotDecay) {
  for (const char* name : {"model.layers.0.input_layernorm.weight", "model.norm.weight", "norm.weight", "q_proj.bias",
                           "q_norm.weight", "encoder.block.0.layer.0.layer_norm.weight", "a.RMSNorm.weight", "norm"})
    EXPECT_FALSE(decays_by_name(name)) << name;
  for (const char* name : {"model.layers.0.self_attn.q_proj.weight", "lm_head.weight", "normal.weight", "xnorm.weight",
                           "transformer.h.0.ln_1.weight"})
    EXPECT_TRUE(decays_by_name(name)) << name;
}

TEST(State, OfEveryOptimizerContinuesWhereItWasSaved) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"adamw_torch", "amsgrad=true"},
                                                                  {"sgd", "momentum=0.9,dampening=0.5"},
                                                                  {"lion_32bit", ""},
                                                                  {"rmsprop", "momentum=0.9,centered=true"},
                                                                  {"adagrad", "lr_decay=0.1"},
                                                                  {"adafactor", "beta1=0.9"},
                                                                  {"torch_adafactor", ""}};
  for (const auto& [name, args] : cases) {
    const auto run = [&, name = name, args = args](bool reload) {
      auto p = at::sin(at::arange(24)).view({4, 6}).set_requires_grad(true);
      const auto fresh = [&] {
        return make_optimizer(name, {.lr = 0.1, .optim_args = args}, {p}, whole_slices({p}), nullptr);
      };
      auto optimizer = fresh();
      for (int t = 0; t < 6; ++t) {
        if (reload && t == 3) {
          const auto saved = optimizer->state();
          auto next = fresh();
          for (auto& slice : next->state())
            for (const auto& other : saved)
              if (other.state == slice.state) slice.local.copy_(other.local);
          next->set_steps(optimizer->steps());
          optimizer = std::move(next);
        }
        p.mutable_grad() = at::cos(at::arange(24) * (t + 1)).view({4, 6});
        optimizer->step();
      }
      return p.detach();
    };
    EXPECT_TRUE(at::equal(run(false), run(true))) << name;
  }
}

TEST(State, ListsParametersThatOtherRanksHold) {
  auto p = at::ones({6}).set_requires_grad(true);
  auto slices = whole_slices({p});
  slices.push_back({.name = "elsewhere", .shape = {3, 2}});
  for (const char* name : {"adamw_torch", "adafactor"}) {
    const auto optimizer = make_optimizer(name, {}, {p}, slices, nullptr);
    bool found = false;
    for (const auto& s : optimizer->state()) found |= s.parameter == "elsewhere";
    EXPECT_TRUE(found) << name;
  }
}

TEST(Adafactor, SkipsWhatNoRankHasAGradientFor) {
  auto a = at::ones({2, 3}).set_requires_grad(true), b = at::ones({2, 3}).set_requires_grad(true);
  const auto optimizer = make_optimizer("adafactor", {.lr = 0.1}, {a, b}, whole_slices({a, b}), nullptr);
  a.mutable_grad() = at::ones({2, 3});
  optimizer->step();
  EXPECT_FALSE(at::equal(a.detach(), at::ones({2, 3})));
  EXPECT_TRUE(at::equal(b.detach(), at::ones({2, 3})));
}

// Where rows and columns have none, the product of their moments is below float32's numbers.
TEST(Adafactor, StepsOverRowsAndColumnsWithoutGradients) {
  auto p = at::tensor({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}).view({2, 3}).set_requires_grad(true);
  const auto optimizer = make_optimizer("adafactor", {.lr = 0.1}, {p}, whole_slices({p}), nullptr);
  p.mutable_grad() = at::tensor({0.0f, 3e2f, -1e2f, 0.0f, 0.0f, 0.0f}).view({2, 3});
  optimizer->step();
  const auto expected = at::tensor({1.0f, 1.9f, 3.1f, 4.0f, 5.0f, 6.0f}).view({2, 3});  // transformers 4.57.3
  EXPECT_TRUE(at::allclose(p.detach(), expected, 0, 1e-6)) << p;
}

TEST(Adafactor, FactorsTheLastTwoOfMoreDimensions) {
  const auto run = [](std::vector<std::int64_t> cuts) {
    auto start = at::sin(at::arange(60, at::kFloat));
    std::vector<at::Tensor> parts;
    std::vector<ParameterSlice> slices;
    std::int64_t at = 0;
    for (auto end : cuts) {
      slices.push_back({.name = "w",
                        .shape = {3, 4, 5},
                        .offset = at,
                        .numel = end - at,
                        .parameter = static_cast<std::int64_t>(parts.size())});
      parts.push_back(start.narrow(0, at, end - at).clone().set_requires_grad(true));
      at = end;
    }
    comm::run_threads(static_cast<int>(cuts.size()), [&](auto group) {
      const auto r = static_cast<std::size_t>(group->rank());
      auto slice = slices[r];
      slice.parameter = 0;
      const auto optimizer = make_optimizer("adafactor", {.lr = 0.1}, {parts[r]}, {slice}, group);
      for (int t = 0; t < 3; ++t) {
        parts[r].mutable_grad() = at::cos(at::arange(60, at::kFloat) * (t + 1)).narrow(0, slice.offset, slice.numel);
        optimizer->step();
      }
    });
    for (auto& p : parts) p = p.detach();
    return at::cat(parts);
  };
  EXPECT_LE((run({60}) - run({7, 33, 60})).abs().max().item<float>(), 1e-6);
}

}  // namespace
}  // namespace tessera::optim
