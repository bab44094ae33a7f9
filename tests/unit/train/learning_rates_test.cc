#include "train/learning_rates.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

std::vector<double> scales(const LearningRates& rates, double lr = 1e-3) {
  std::vector<optim::ParameterSlice> slices;
  const auto add = [&](const char* name, std::vector<std::int64_t> shape) {
    slices.push_back({.name = name, .shape = std::move(shape)});
  };
  add("layers.0.q_proj.lora_A.default.weight", {4, 8});
  add("layers.0.q_proj.lora_B.default.weight", {8, 4});
  add("embed_tokens.lora_embedding_A.default", {4, 99});
  add("layers.0.q_proj.lora_magnitude_vector.default.weight", {8});
  apply_learning_rates(rates, lr, slices);
  std::vector<double> result;
  for (const auto& s : slices) result.push_back(s.lr_scale);
  return result;
}

std::string error_of(const LearningRates& rates, double lr = 1e-3) {
  try {
    scales(rates, lr);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(LearningRates, AreAllOneUnlessSaidOtherwise) {
  EXPECT_EQ(scales({}), (std::vector<double>{1, 1, 1, 1}));
}

TEST(LearningRates, GroupsAreFactorsOrRatesAndTheFirstThatMatchesCounts) {
  EXPECT_EQ(scales({.groups = "lora_B=16x,embed=1e-6,q_proj=0"}), (std::vector<double>{0, 16, 1e-6 / 1e-3, 0}));
  EXPECT_EQ(scales({.groups = "lora_[AB]=2x"}), (std::vector<double>{2, 2, 1, 1}));
}

TEST(LearningRates, LoraPlusGroupsAsPeftDoes) {
  EXPECT_EQ(scales({.groups = "", .loraplus_lr_ratio = 8}), (std::vector<double>{1, 8, 1e-6 / 1e-3, 8}));
  EXPECT_EQ(scales({.groups = "lora_A=3x", .loraplus_lr_ratio = 8, .loraplus_lr_embedding = 1e-4}),
            (std::vector<double>{3, 8, 1e-4 / 1e-3, 8}));
}

TEST(LearningRates, MistakesAreNamed) {
  EXPECT_NE(error_of({.groups = "lora_C=2x"}).find("no trained parameter is in the group 'lora_C'"), std::string::npos);
  EXPECT_NE(error_of({.groups = "lora_B"}).find("expected name=rate"), std::string::npos);
  EXPECT_NE(error_of({.groups = "lora_B=fast"}).find("found 'fast'"), std::string::npos);
  EXPECT_NE(error_of({.groups = "lora_[=2x"}).find("is no regular expression"), std::string::npos);
  EXPECT_NE(error_of({.groups = "lora_B=1e-3"}, 0).find("above 0"), std::string::npos);
  std::vector<optim::ParameterSlice> full = {{.name = "norm.weight", .shape = {8}}};
  EXPECT_THROW(apply_learning_rates({.groups = "", .loraplus_lr_ratio = 2}, 1e-3, full), ConfigError);
}

}  // namespace
}  // namespace tessera::train
