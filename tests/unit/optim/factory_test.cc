#include "tessera/optim/factory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

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
      EXPECT_TRUE(at::equal(second->parameters()[0].grad(), gradient)) << name << " changed what others read";
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

// As torch's classes, with their ValueErrors, and no number that is none.
TEST(Factory, RefusesNumbersThatMeanNothing) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> cases = {
      {"sgd", {"momentum=-1", "weight_decay=-0.1", "dampening=nan"}},
      {"adamw_torch", {"beta1=2", "beta2=1", "eps=-1", "eps=inf", "weight_decay=nan"}},
      {"rmsprop", {"alpha=-2", "momentum=-1", "eps=-1"}},
      {"adagrad", {"lr_decay=-5", "initial_accumulator_value=-1", "eps=-1"}},
      {"ademamix", {"alpha=-3", "beta3=1", "t_alpha=-1"}},
      {"adafactor", {"clip_threshold=0", "decay_rate=0.8", "eps2=-1", "beta1=1"}},
      {"torch_adafactor", {"d=0.5", "beta2_decay=1", "eps1=-1"}},
      {"grokadamw", {"alpha_init=2", "gamma=-1", "lamb=-inf"}},
      {"galore_adamw", {"scale=-1"}}};
  for (const auto& [name, all] : cases)
    for (const std::string args : all) {
      const auto key = args.substr(0, args.find('='));
      const auto text = message_of(name, args);
      EXPECT_NE(text.find(" for '" + key + "', found '" + args.substr(key.size() + 1) + "'"), std::string::npos)
          << name << " " << args << ": " << text;
    }
  EXPECT_EQ(message_of("sgd", "momentum=-1"),
            "optim_args|optim_args of 'sgd': expected a number of at least 0 for 'momentum', found '-1'");
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

// Trainer passes its decay neither to GaLore and APOLLO nor to LOMO.
TEST(Groups, SomeOptimizersDecayByTheirOwnArgumentAlone) {
  for (const char* name : {"galore_adamw", "galore_adamw_8bit", "galore_adafactor", "apollo_adamw", "lomo", "adalomo"})
    for (const bool decays : {false, true}) {
      auto vector = at::ones({4}).set_requires_grad(true), matrix = at::ones({4, 4}).set_requires_grad(true);
      auto slices = whole_slices({vector, matrix});
      const bool low_rank = std::string(name).find("lomo") == std::string::npos;
      slices[1].low_rank = low_rank;
      const std::string args = std::string(decays ? "weight_decay=0.5" : "") + (low_rank ? ",rank=2" : "");
      const auto optimizer =
          make_optimizer(name, {.lr = 0.1, .weight_decay = 0.7, .optim_args = args}, {vector, matrix}, slices, nullptr);
      vector.mutable_grad() = at::zeros({4}), matrix.mutable_grad() = at::zeros({4, 4});
      optimizer->step();
      for (const auto& p : {vector, matrix})
        EXPECT_EQ((p.detach() < 1).all().item<bool>(), decays) << name << " " << p.sizes();
    }
}

// Both have a place of their own for each parameter, also where --weight_decay is 0 and neither decays.
TEST(Groups, GrokAdamWNumbersTheParametersOfEach) {
  const auto second_after_steps = [](std::optional<double> first_decay) {
    auto a = at::ones({4}).set_requires_grad(true), b = at::ones({4}).set_requires_grad(true);
    auto slices = whole_slices({a, b});
    slices[0].weight_decay = first_decay;
    const auto optimizer = make_optimizer("grokadamw", {.lr = 0.1, .weight_decay = 0}, {a, b}, slices, nullptr);
    for (int step = 0; step < 3; ++step) {
      a.mutable_grad() = at::ones({4}), b.mutable_grad() = at::full({4}, step - 1.5);
      optimizer->step();
    }
    return b.detach().clone();
  };
  auto alone = at::ones({4}).set_requires_grad(true);
  const auto optimizer =
      make_optimizer("grokadamw", {.lr = 0.1, .weight_decay = 0}, {alone}, whole_slices({alone}), nullptr);
  for (int step = 0; step < 3; ++step) {
    alone.mutable_grad() = at::full({4}, step - 1.5);
    optimizer->step();
  }
  EXPECT_TRUE(at::equal(second_after_steps(0.0), alone.detach()));
  EXPECT_FALSE(at::equal(second_after_steps(std::nullopt), alone.detach()));
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
