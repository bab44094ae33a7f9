// Combining adapters: what PEFT gives is compared by tests/golden (J_peft/combine*); here is what it does not say.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "peft/adapter_files.h"
#include "peft/combine/combine_lora.h"
#include "support/compare.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "unit/peft/with_adapter.h"

namespace tessera::peft {
namespace {

namespace fs = std::filesystem;

const std::string kAdapters = std::string(TESSERA_TEST_DATA) + "/goldens/J_peft/combine/adapters/";

class Combine : public testing::Test {
 protected:
  std::string in(const std::string& name) const { return folder_.path() + "/" + name; }

  /// A copy of a reference adapter with changed settings.
  std::string changed(const std::string& name, const nlohmann::json& settings) {
    const auto to = in(name + std::to_string(++copies_));
    fs::copy(kAdapters + name, to);
    auto config = nlohmann::json::parse(read_file(to + "/adapter_config.json"));
    config.update(settings);
    fs::remove(to + "/adapter_config.json");
    std::ofstream(to + "/adapter_config.json") << config.dump(2);
    return to;
  }

  CombineReport combine(CombineOptions options, const std::string& output = "out") {
    fs::create_directories(in(output));
    return combine_lora(options, in(output));
  }

  static CombineOptions of(const std::string& type, std::vector<WeightedAdapter> adapters) {
    CombineOptions options;
    options.adapters = std::move(adapters);
    options.combination_type = type;
    if (prunes(type)) options.density = 0.5;
    return options;
  }
  CombineOptions two(const std::string& type) const {
    return of(type, {{"a", kAdapters + "first", 0.7}, {"b", kAdapters + "second", -0.4}});
  }

  std::string refusal(const CombineOptions& options) {
    try {
      combine(options);
    } catch (const Error& e) {
      return e.what();
    }
    return "nothing was refused";
  }
  void expect_refused(const CombineOptions& options, const std::string& text) {
    const auto message = refusal(options);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  }

  /// Logits of the base with the folder's adapter.
  at::Tensor logits(const std::string& folder) const {
    auto loaded = load(read_lora(folder), "base_llama");
    load_adapter(*loaded.model, *loaded.report.method, folder);
    loaded.model->eval();
    models::ModelInput input;
    input.input_ids = torch::arange(1, 13).view({2, 6});
    torch::NoGradGuard no_grad;
    return (*loaded.model)(input).logits;
  }

  test::TempFolder folder_{"combine"};
  int copies_ = 0;
};

TEST_F(Combine, EveryTypeGivesAnAdapterThatLoads) {
  for (const auto& type : combination_types()) {
    const auto report = combine(two(type), type);
    EXPECT_EQ(report.modules, 4) << type;
    EXPECT_EQ(report.rank, type == "cat" ? 8 : 4) << type;
    EXPECT_TRUE(logits(in(type)).isfinite().all().item<bool>()) << type;
  }
}

TEST_F(Combine, SvdOfFullRankIsTheSumOfTheProducts) {
  auto options = two("svd");
  options.svd_rank = 8;
  combine(options, "svd");
  combine(two("cat"), "cat");
  test::expect_close(logits(in("svd")), logits(in("cat")), 1e-5, "logits");
}

TEST_F(Combine, MoreRankThanThereIsIsZero) {
  auto options = two("svd");
  options.svd_rank = 40;
  EXPECT_EQ(combine(options, "wide").rank, 40);
  combine(two("cat"), "cat");
  test::expect_close(logits(in("wide")), logits(in("cat")), 1e-5, "logits");
}

TEST_F(Combine, AnAdapterOfRsLoraKeepsItsEffect) {
  const auto rs = changed("first", {{"use_rslora", true}});
  combine(of("linear", {{"rs", rs, 1.0}}));
  test::expect_close(logits(in("out")), logits(rs), 1e-5, "logits");
}

TEST_F(Combine, LayersThatOtherSettingsChooseAreNamed) {
  const auto whole = changed("first", {{"target_modules", "model.layers.[01].self_attn.(q|v)_proj"}});
  combine(of("cat", {{"a", whole, 1.0}, {"b", kAdapters + "third", 1.0}}));
  const auto config = read_lora(in("out"));
  EXPECT_EQ(config.target_modules.size(), 6u);
  EXPECT_EQ(config.target_modules[0], "model.layers.0.mlp.down_proj");
  EXPECT_TRUE(config.target_regex.empty());
  logits(in("out"));
}

TEST_F(Combine, DareFollowsItsSeedAndKeepsTheMean) {
  const auto values = [&](std::uint64_t seed) {
    auto options = two("dare_linear");
    options.seed = seed;
    options.density = 0.5;
    const auto name = "seed" + std::to_string(seed);
    combine(options, name);
    return read_file(in(name) + "/adapter_model.safetensors");
  };
  const auto first = values(1);
  EXPECT_EQ(values(1), first);
  EXPECT_NE(values(2), first);
  TaskRule rule{.pruning = Pruning::kRandom, .density = 0.25, .seed = 3};
  const auto kept = combine_tasks({{torch::ones({100, 100}), 1.0, "x"}}, rule);
  EXPECT_NEAR(kept.mean().item<double>(), 1.0, 0.1);
  EXPECT_EQ(kept.max().item<double>(), 4.0);
}

TEST_F(Combine, ATrainedModuleOfOneAdapterStays) {
  const auto trained = changed("first", {{"modules_to_save", {"lm_head"}}});
  auto tensors = std::vector<std::pair<std::string, at::Tensor>>();
  const auto source = io::open_safetensors(trained + "/adapter_model.safetensors");
  for (const auto& info : source->tensors()) tensors.emplace_back(info.name, io::read_tensor(*source, info.name));
  tensors.emplace_back("base_model.model.lm_head.weight", torch::full({96, 24}, 0.5));
  fs::remove(trained + "/adapter_model.safetensors");
  io::write_safetensors(trained + "/adapter_model.safetensors", tensors);
  combine(of("svd", {{"a", trained, 1.0}, {"b", kAdapters + "second", 1.0}}));
  EXPECT_EQ(read_lora(in("out")).modules_to_save, std::vector<std::string>{"lm_head"});
  const auto head =
      io::read_tensor(*io::open_safetensors(in("out/adapter_model.safetensors")), "base_model.model.lm_head.weight");
  EXPECT_EQ(head.min().item<double>(), 0.5);
  expect_refused(of("svd", {{"a", trained, 1.0}, {"b", trained, 1.0}}), "modules that were trained whole");
}

TEST_F(Combine, RefusesWhatCannotBeAddedUp) {
  const auto with = [&](const nlohmann::json& settings) {
    return of("svd", {{"a", kAdapters + "first", 1.0}, {"odd", changed("second", settings), 1.0}});
  };
  expect_refused(with({{"use_dora", true}}), "adapter 'odd'");
  expect_refused(with({{"bias", "all"}}), "trained biases");
  expect_refused(with({{"lora_bias", true}}), "lora_bias");
  expect_refused(with({{"target_parameters", {"q_proj.weight"}}}), "target_parameters");
  expect_refused(with({{"trainable_token_indices", {1}}}), "trainable_token_indices");
  expect_refused(with({{"init_lora_weights", "pissa"}}), "changes the base model");
  expect_refused(with({{"base_model_name_or_path", "elsewhere"}}), "for 'elsewhere'");
  expect_refused(with({{"r", 3}}), "must be [3, in] and [out, 3]");
  expect_refused(of("svd", {{"a", kAdapters + "first", 1.0}, {"odd", kAdapters + "../../llama_ia3/adapter_init", 1.0}}),
                 "peft_type is IA3");
}

TEST_F(Combine, RefusesFactorsThatAreNotFinite) {
  const auto broken = changed("second", nlohmann::json::object());
  const auto file = broken + "/adapter_model.safetensors";
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const auto source = io::open_safetensors(kAdapters + "second/adapter_model.safetensors");
  for (const auto& info : source->tensors())
    tensors.emplace_back(info.name, io::read_tensor(*source, info.name).clone());
  tensors.back().second.view({-1})[3] = std::numeric_limits<double>::quiet_NaN();
  fs::remove(file);
  io::write_safetensors(file, tensors);
  for (const std::string type : {"linear", "svd"})
    expect_refused(of(type, {{"a", kAdapters + "first", 1.0}, {"broken", broken, 1.0}}),
                   tensors.back().first + "' of adapter 'broken' has values that are not finite");
}

TEST_F(Combine, RefusesRanksAndDensitiesByName) {
  auto options = of("linear", {{"a", kAdapters + "first", 1.0}, {"b", kAdapters + "third", 1.0}});
  expect_refused(options, "a: 4, b: 2");
  options = two("ties");
  options.density.reset();
  expect_refused(options, "needs a density");
  options = two("dare_ties");
  options.density = 0;
  expect_refused(options, "density must be above 0");
  options.combination_type = "sum";
  expect_refused(options, "magnitude_prune_svd");
}

TEST_F(Combine, RefusesAnotherBaseByItsShapes) {
  const auto wide = in("wide");
  fs::create_directories(wide);
  fs::copy(kAdapters + "second/adapter_config.json", wide);
  const auto source = io::open_safetensors(kAdapters + "second/adapter_model.safetensors");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& info : source->tensors())
    tensors.emplace_back(info.name, info.name.find("lora_A") != std::string::npos
                                        ? torch::zeros({4, 32})
                                        : io::read_tensor(*source, info.name));
  io::write_safetensors(wide + "/adapter_model.safetensors", tensors);
  expect_refused(of("cat", {{"a", kAdapters + "first", 1.0}, {"b", wide, 1.0}}), "of different base models");
}

}  // namespace
}  // namespace tessera::peft
