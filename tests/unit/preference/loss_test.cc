#include "preference/loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "preference/objective.h"
#include "support/goldens.h"
#include "tessera/base/error.h"
#include "tessera/io/tensor_source.h"

namespace tessera::preference {
namespace {

using nlohmann::json;

std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.is_null() ? "none" : value.dump();
  std::string list;
  for (const auto& item : value) list += (list.empty() ? "" : ",") + text_of(item);
  return list;
}

void set(at::Tensor& table, Column column, std::int64_t side, const at::Tensor& values) {
  table.select(0, static_cast<std::int64_t>(column)).select(0, side).copy_(values);
}

/// A table of the log-probabilities that a case of DPO holds.
at::Tensor table_of_case(const io::TensorSource& values, const io::TensorSource& batch) {
  const auto read = [&](const char* name) { return io::read_tensor(values, name).to(at::kDouble); };
  const auto mask = io::read_tensor(batch, "completion_mask").to(at::kDouble);
  const auto n = mask.size(0) / 2;
  at::Tensor table = at::zeros({kColumns, 2, n}, at::kDouble);
  for (std::int64_t side = 0; side < 2; ++side) {
    const auto logps = read(side == 0 ? "chosen_logps" : "rejected_logps");
    set(table, Column::kLogps, side, logps);
    set(table, Column::kTokenLogps, side, logps);
    set(table, Column::kRefLogps, side, read(side == 0 ? "ref_chosen_logps" : "ref_rejected_logps"));
    const auto rows = mask.narrow(0, side * n, n);
    set(table, Column::kTokens, side, rows.sum(1));
    set(table, Column::kPredicted, side, rows.narrow(1, 1, rows.size(1) - 1).sum(1));
  }
  return table;
}

TEST(DpoLoss, EqualsTrlsForEveryCaseOfTheSet) {
  const auto folder = test::goldens("K_preference") / "dpo";
  if (!std::filesystem::exists(folder / "expect.json")) GTEST_SKIP() << "the set has no DPO";
  const auto expect = test::read_golden(folder / "expect.json");
  for (const auto& [name, c] : expect.at("cases").items()) {
    Objective objective;
    for (const auto& [key, value] : c.at("kwargs").items()) ASSERT_TRUE(set_argument(objective, key, text_of(value)));
    if (objective.dpo.use_weighting) continue;  // needs the distribution
    const auto values = io::open_safetensors((folder / c.at("file").get<std::string>()).string());
    const auto batch = io::open_safetensors((folder / c.at("batch").get<std::string>()).string());
    const auto result = objective(Completions(table_of_case(*values, *batch)));
    const double loss = c.at("loss");
    EXPECT_NEAR(result.loss.item<double>(), loss, 1e-4 * std::max(1.0, std::abs(loss))) << name;
    if (values->find("losses")) {
      EXPECT_TRUE(at::allclose(result.losses, io::read_tensor(*values, "losses").to(at::kDouble), 1e-4, 1e-4)) << name;
    }
    EXPECT_TRUE(
        at::allclose(result.chosen_rewards, io::read_tensor(*values, "chosen_rewards").to(at::kDouble), 1e-4, 1e-5))
        << name;
  }
}

/// Some pairs, none of them a tie or at a kink of a loss.
at::Tensor made_up_table() {
  at::Tensor table = at::zeros({kColumns, 2, 4}, at::kDouble);
  const auto values = [](std::vector<double> v) { return at::tensor(v, at::kDouble); };
  set(table, Column::kLogps, 0, values({-10.1, -7.3, -22.9, -3.2}));
  set(table, Column::kLogps, 1, values({-12.4, -5.1, -20.4, -8.8}));
  set(table, Column::kRefLogps, 0, values({-10.9, -7.9, -21.0, -3.9}));
  set(table, Column::kRefLogps, 1, values({-11.2, -6.6, -21.7, -8.1}));
  table.select(0, static_cast<std::int64_t>(Column::kTokenLogps)).copy_(table[0]);
  table.select(0, static_cast<std::int64_t>(Column::kAllLogps)).copy_(table[0] - 3);
  for (std::int64_t side = 0; side < 2; ++side) {
    set(table, Column::kPredicted, side, values({4, 3, 9, 2}));
    set(table, Column::kTokens, side, values({4, 3, 9, 3}));
    set(table, Column::kAllTokens, side, values({6, 4, 10, 3}));
    set(table, Column::kAgreement, side, values({0.3, 0.5, 0.2, 0.9}));
  }
  return table;
}

void expect_gradient_of_differences(const Objective& objective, const at::Tensor& values, const std::string& name) {
  at::Tensor table = values.clone().requires_grad_();
  objective(Completions(table)).loss.backward();
  const at::Tensor gradient = table.grad()[static_cast<std::int64_t>(Column::kLogps)];
  constexpr double kStep = 1e-5;
  for (std::int64_t side = 0; side < values.size(1); ++side) {
    for (std::int64_t i = 0; i < values.size(2); ++i) {
      const auto at_distance = [&](double step) {
        at::Tensor moved = values.clone();
        moved[0][side][i] += step;
        return objective(Completions(moved)).loss.item<double>();
      };
      const double expected = (at_distance(kStep) - at_distance(-kStep)) / (2 * kStep);
      EXPECT_NEAR(gradient[side][i].item<double>(), expected, 1e-6) << name << " side " << side << " pair " << i;
    }
  }
}

TEST(DpoLoss, GradientsAreThoseOfFiniteDifferences) {
  for (const auto& [name, loss] : dpo_losses()) {
    Objective objective;
    objective.dpo.losses = {loss};
    objective.dpo.label_smoothing = 0.1;
    objective.dpo.beta = 0.3;
    objective.dpo.use_weighting = true;
    expect_gradient_of_differences(objective, made_up_table(), name);
  }
  for (const auto divergence : {Divergence::kForwardKl, Divergence::kJs, Divergence::kAlpha}) {
    Objective objective;
    objective.dpo.divergence = divergence;
    expect_gradient_of_differences(objective, made_up_table(), "divergence");
  }
}

TEST(PreferenceLoss, GradientsOfTheOthersAreThoseOfFiniteDifferences) {
  Objective orpo{.method = Method::kOrpo};
  expect_gradient_of_differences(orpo, made_up_table(), "orpo");
  for (const auto loss : {CpoLoss::kSigmoid, CpoLoss::kHinge, CpoLoss::kIpo, CpoLoss::kSimpo}) {
    Objective cpo{.method = Method::kCpo};
    cpo.cpo = {.loss = loss, .beta = 0.7, .label_smoothing = 0.05, .alpha = 0.2};
    expect_gradient_of_differences(cpo, made_up_table(), "cpo");
  }
  Objective kto{.method = Method::kKto};
  kto.kto = {.beta = 0.4, .desirable_weight = 1.5, .undesirable_weight = 0.6};
  at::Tensor rows = made_up_table().narrow(1, 0, 1).clone();
  set(rows, Column::kLabel, 0, at::tensor({1.0, 0.0, 0.0, 1.0}, at::kDouble));
  set(rows, Column::kKlLogps, 0, at::tensor({-9.0, -8.0, -7.0, -6.0}, at::kDouble));
  set(rows, Column::kKlRefLogps, 0, at::tensor({-9.5, -8.1, -7.2, -6.6}, at::kDouble));
  expect_gradient_of_differences(kto, rows, "kto");
}

TEST(DpoLoss, ATieOfRewardsIsNotAccurate) {
  at::Tensor table = at::zeros({kColumns, 2, 2}, at::kDouble);
  set(table, Column::kLogps, 0, at::tensor({-1.0, -2.0}, at::kDouble));
  set(table, Column::kLogps, 1, at::tensor({-1.0, -3.0}, at::kDouble));
  const auto result = dpo_loss(Completions(table), {});
  for (const auto& [name, value] : result.metrics) {
    if (name == "rewards/accuracies") {
      EXPECT_EQ(value, 0.5);
    }
  }
}

// Whether rows have margins is said by themselves: those of one split may have some, of another none.
TEST(RewardLoss, TakesTheMarginsOfItsRows) {
  at::Tensor table = at::zeros({kColumns, 2, 2}, at::kDouble);
  set(table, Column::kReward, 0, at::tensor({1.0, 2.0}, at::kDouble));
  set(table, Column::kMargin, 0, at::tensor({1.0, 0.0}, at::kDouble));
  const auto result = reward_loss(Completions(table), {});
  EXPECT_DOUBLE_EQ(result.losses[0].item<double>(), std::log(2.0));
  EXPECT_DOUBLE_EQ(result.losses[1].item<double>(), std::log(1 + std::exp(-2.0)));
}

TEST(KtoLoss, BatchesOfOneLabelHaveNoNumbersOfTheOther) {
  at::Tensor rows = at::zeros({kColumns, 1, 2}, at::kDouble);
  set(rows, Column::kLabel, 0, at::ones({2}, at::kDouble));
  const auto result = kto_loss(Completions(rows), {});
  EXPECT_EQ(result.losses.numel(), 2);
  for (const auto& [name, value] : result.metrics) EXPECT_EQ(name.find("rejected"), std::string::npos) << name;
}

// Values of TRL 1.16's own lines (KTOTrainer._prepare_dataset), run over so many labels.
TEST(KtoLoss, AdvisesWeightsAsTrlDoes) {
  struct Case {
    std::int64_t desirable, rows;
    double desirable_weight, undesirable_weight;
    std::string advice;
  };
  for (const Case& c :
       {Case{9, 12, 1, 1, "desirable_weight in [0.33, 0.44] or undesirable_weight in [2.26, 3.0]"},
        Case{9, 12, 1, 2.5, ""}, Case{9, 12, 0.4, 1, ""}, Case{6, 12, 1, 7, ""},
        Case{12, 12, 1, 1, "desirable_weight in [0.08, 0.11] or undesirable_weight in [9.02, 12.0]"},
        Case{0, 5, 1, 1, "desirable_weight in [4.0, 5.32] or undesirable_weight in [0.19, 0.25]"},
        Case{1, 8, 1, 1, "desirable_weight in [7.0, 9.31] or undesirable_weight in [0.11, 0.14]"},
        Case{100, 300, 1.5, 1, "desirable_weight in [2.0, 2.66] or undesirable_weight in [0.56, 0.75]"},
        Case{7, 10, 1, 1.7, "desirable_weight in [0.73, 0.97] or undesirable_weight in [1.75, 2.33]"}}) {
    const auto note = note_on_balance(
        {.desirable_weight = c.desirable_weight, .undesirable_weight = c.undesirable_weight}, c.desirable, c.rows);
    EXPECT_EQ(note.empty(), c.advice.empty()) << note;
    EXPECT_NE(note.find(c.advice), std::string::npos) << note;
  }
}

TEST(Objective, NamesWhatAnArgumentExpects) {
  Objective objective;
  EXPECT_FALSE(set_argument(objective, "desirable_weight", "1"));
  try {
    set_argument(objective, "loss_type", "sigmoid,nonsense");
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_NE(std::string(e.what()).find("sppo_hard"), std::string::npos) << e.what();
  }
  EXPECT_THROW(set_argument(objective, "beta", "0.1x"), ConfigError);
}

}  // namespace
}  // namespace tessera::preference
