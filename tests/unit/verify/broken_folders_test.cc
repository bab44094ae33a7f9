// A folder of references that lost a part, or has more than its settings make, is not equal.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "support/temp_folder.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"
#include "verify/verify.h"

namespace tessera::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kGoldens = std::string(TESSERA_TEST_DATA) + "/goldens/";

/// A copy of a folder of the goldens among its neighbours.
class BrokenFolder : public testing::Test {
 protected:
  void take(const std::string& name) {
    for (const auto& family : fs::directory_iterator(kGoldens)) {
      const auto here = fs::path(root_.path()) / family.path().filename();
      fs::remove_all(here);
      if (!family.is_directory()) continue;
      fs::create_directories(here);
      for (const auto& folder : fs::directory_iterator(family.path()))
        fs::create_directory_symlink(folder.path(), here / folder.path().filename());
    }
    place_ = fs::path(root_.path()) / name;
    fs::remove(place_);
    fs::copy(kGoldens + name, place_, fs::copy_options::recursive);
  }
  void change_json(const std::function<void(json&)>& change) {
    const auto file = (place_ / "expect.json").string();
    auto text = json::parse(read_file(file));
    change(text);
    std::ofstream(file) << text;
  }
  void change_tensors(const std::string& name, const std::function<void(std::map<std::string, at::Tensor>&)>& change) {
    const auto file = (place_ / name).string();
    std::map<std::string, at::Tensor> tensors;
    {
      const auto source = io::open_safetensors(file);
      for (const auto& info : source->tensors()) tensors[info.name] = io::read_tensor(*source, info.name);
    }
    change(tensors);
    fs::remove(file);
    io::write_safetensors(file, {tensors.begin(), tensors.end()});
  }
  void drop(const std::string& file, const std::string& key) {
    change_tensors(file, [&](auto& tensors) { ASSERT_EQ(tensors.erase(key), 1U); });
  }
  /// What it prints; empty: it found everything equal.
  std::string differences() const {
    std::ostringstream out;
    return verify({place_.string()}, out, out) == 0 ? "" : out.str();
  }
  void expect_difference(const std::string& text) const {
    const auto found = differences();
    EXPECT_NE(found.find("FAILED " + text), std::string::npos) << found;
  }

  const test::TempFolder root_{"verify_broken"};
  fs::path place_;
};

TEST_F(BrokenFolder, OutputsThatNobodyCompares) {
  const std::string name = "A_models/llama_gqa_rope3";
  take(name);
  EXPECT_EQ(differences(), "");
  change_tensors("io.safetensors", [](auto& t) { t["hidden.99"] = t["hidden.0"]; });
  expect_difference("hidden hidden.99: is no output of this model");
  take(name);
  drop("io.safetensors", "grad.model.norm.weight");
  expect_difference("gradient model.norm.weight: is not in the reference");
  take(name);
  for (const char* file : {"io_left.safetensors", "io.safetensors"}) {
    take(name);
    drop(file, "labels");
    expect_difference("loss: was not computed");
  }
  for (const char* key : {"logits", "loss", "hidden.1"}) {
    take(name);
    drop("io.safetensors", key);
    expect_difference(std::string(key).starts_with("hidden") ? "hidden hidden.1: is not in" : key);
  }
  take(name);
  fs::remove(place_ / "io_packed.safetensors");
  EXPECT_THROW(differences(), DataError) << "expect.json lists it";
}

TEST_F(BrokenFolder, WeightsGradientsAndMergedFoldersThatAreMissing) {
  const std::string name = "J_peft/llama_ia3";
  take(name);
  EXPECT_EQ(differences(), "");
  std::string key;
  change_tensors("adapter_final/adapter_model.safetensors", [&](auto& t) {
    key = t.begin()->first;
    t.erase(key);
  });
  expect_difference("weights " + key + ": is not in the reference");
  take(name);
  change_tensors("step0_grads.safetensors", [&](auto& t) { t.erase(t.begin()); });
  expect_difference("step0_gradient");
  take(name);
  fs::remove_all(place_ / "merged");
  expect_difference("merged");
  take(name);
  drop("final_logits.safetensors", "logits_adapter_final_batch0");
  expect_difference("final_logits: are not in");
  take("B_train/t5_full");
  change_tensors("final_optimizer.safetensors", [&](auto& t) {
    key = t.begin()->first;
    t["other." + key] = t[key];
    t.erase(key);
  });
  expect_difference("optimizer " + key + ": is not in the reference");
  expect_difference("optimizer other." + key + ": is no state here");
}

TEST_F(BrokenFolder, PartsOfOneMethod) {
  take("J_peft/llama_ptuning_mlp");
  EXPECT_EQ(differences(), "");
  drop("trainable_final.safetensors", "prompt_encoder.default.mlp_head.4.bias");
  expect_difference("trained prompt_encoder.default.mlp_head.4.bias: is not in the reference");
  take("J_peft/llama_adalora");
  EXPECT_EQ(differences(), "");
  drop("allocation.safetensors", "step7.score.model.layers.0.self_attn.v_proj.lora_E.default");
  EXPECT_THROW(differences(), DataError);
}

TEST_F(BrokenFolder, GradientsThatShouldBeZero) {
  take("B_train/llama_dora");
  change_tensors("step0_grads.safetensors", [](auto& t) {
    for (auto& [name, gradient] : t)
      if (name.find("lora_B") != std::string::npos) gradient.zero_();
  });
  expect_difference("step0_gradient");
}

// The cross entropy of one class is 0, and so are all gradients. DeBERTa's models return their only column as a row.
TEST_F(BrokenFolder, AClassifierOfOneClassIsEqual) {
  take("K_preference/cls_llama");
  for (const auto& entry : fs::directory_iterator(kGoldens + "K_preference/cls_llama"))
    if (const auto name = entry.path().filename(); name.string().starts_with("io_")) fs::remove(place_ / name);
  change_json([](json& expect) { expect.erase("files"); });
  auto config = json::parse(read_file((place_ / "config.json").string()));
  config.update({{"id2label", {{"0", "A"}}}, {"problem_type", "single_label_classification"}});
  std::ofstream(place_ / "config.json") << config;
  change_tensors("model.safetensors", [](auto& t) { t["score.weight"] = t["score.weight"].slice(0, 0, 1).clone(); });
  change_tensors("io.safetensors", [](auto& t) {
    for (auto& [name, tensor] : t)
      if (name.starts_with("grad.") || name == "loss" || name == "labels") tensor.zero_();
    t["grad.score.weight"] = t["grad.score.weight"].slice(0, 0, 1).clone();
    t["logits"] = t["logits"].select(1, 0).clone();
  });
  EXPECT_EQ(differences(), "");
  change_tensors("io.safetensors", [](auto& t) { t["logits"].add_(1e-3); });
  expect_difference("logits");
}

// Only whole models change places: what trains is the adapter.
TEST_F(BrokenFolder, SwappedCasesOfAdaptersAreAsTheOthers) {
  take("K_preference/kto");
  change_json([](json& expect) {
    for (auto& [name, one] : expect["cases"].items())
      if (one["form"] == "lora") one["swapped"] = true;
  });
  EXPECT_EQ(differences(), "");
}

TEST_F(BrokenFolder, MoreOrFewerStepsThanTheSettings) {
  take("J_peft/llama_ia3");
  change_json([](json& text) { text["token_mean"]["loss"].push_back(1.0); });
  expect_difference("loss: are 11 in the reference, whose settings make 10");
  take("B_train/hf_trainer");
  EXPECT_EQ(differences(), "");
  change_json([](json& text) { text["log_history"].erase(text["log_history"].begin()); });
  expect_difference("loss: are 7 in the reference, whose settings make 8");
  take("B_train/hf_trainer");
  change_json([](json& text) { text["log_history"][0]["loss"] = 0.0; });
  expect_difference("loss step 0");
  take("B_train/hf_trainer");
  change_tensors("final.safetensors", [](auto& t) { t.erase(t.begin()); });
  expect_difference("weights");
  take("K_preference/dpo_traj_full_ipo_accumulated");
  EXPECT_EQ(differences(), "");
  change_json([](json& text) { text["micro_losses"].push_back(1.0); });
  expect_difference("loss: are");
}

TEST_F(BrokenFolder, ScoresThatAreNoNumbers) {
  take("A_models/logits_processors");
  EXPECT_EQ(differences(), "");
  change_tensors("io.safetensors", [](auto& t) {
    auto& scores = t.at("suppress");
    scores.masked_fill_(scores.isinf(), std::nan(""));
  });
  expect_difference("processor suppress");
}

TEST_F(BrokenFolder, CombinedAdaptersWithoutValues) {
  take("J_peft/combine");
  change_tensors("results.safetensors", [](auto& t) {
    std::erase_if(t, [](const auto& item) { return item.first.starts_with("comb_cat."); });
  });
  expect_difference("values comb_cat: are not in the reference");
  take("J_peft/combine");
  drop("results.safetensors", "logits.first");
  EXPECT_THROW(differences(), DataError);
  take("J_peft/combine");
  change_json([](json& text) { text["combined"]["comb_cat"]["arguments"]["other"] = 1; });
  EXPECT_THROW(differences(), ConfigError);
}

}  // namespace
}  // namespace tessera::verify
