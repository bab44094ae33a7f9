#include "tessera/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera::optim {
namespace {

std::string schedule_error(const std::string& name, const std::string& kwargs, double lr = 1) {
  try {
    make_schedule(name, {.lr = lr, .warmup_steps = 2, .total_steps = 10, .kwargs_json = kwargs});
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(Schedule, NamesTheNearest) {
  EXPECT_NE(schedule_error("lineal", "").find("did you mean 'linear'"), std::string::npos);
  EXPECT_THROW(schedule("lineal", 0, 0, 1), ConfigError);
}

TEST(Schedule, ChecksItsKeys) {
  EXPECT_NE(schedule_error("cosine", R"({"num_cycle": 1})").find("did you mean 'num_cycles'"), std::string::npos);
  EXPECT_NE(schedule_error("cosine", R"({"num_cycles": "two"})").find("expected a number"), std::string::npos);
  EXPECT_NE(schedule_error("cosine", "num_cycles=2").find("JSON object"), std::string::npos);
  EXPECT_NE(schedule_error("cosine_with_min_lr", "").find("neither"), std::string::npos);
  EXPECT_NE(schedule_error("cosine_with_min_lr", R"({"min_lr": 1e-5, "min_lr_rate": 0.1})").find("both"),
            std::string::npos);
  EXPECT_NE(schedule_error("warmup_stable_decay", "").find("num_decay_steps"), std::string::npos);
  EXPECT_NE(schedule_error("warmup_stable_decay", R"({"num_decay_steps": 2, "decay_type": "log"})").find("'1-sqrt'"),
            std::string::npos);
  EXPECT_NE(schedule_error("polynomial", "", 1e-9).find("lr_end below"), std::string::npos);
  EXPECT_NE(schedule_error("linear", R"({"power": 1})").find("it takes none"), std::string::npos);
}

TEST(Schedule, CosineWithWarmupToMinLrBeginsAboveZero) {
  // transformers 4.57.3, get_cosine_with_min_lr_schedule_with_warmup_lr_rate(min_lr_rate=0.1), 3 of 10 steps warmup.
  const auto s =
      make_schedule("cosine_warmup_with_min_lr",
                    {.lr = 1, .warmup_steps = 3, .total_steps = 10, .kwargs_json = R"({"min_lr_rate":0.1})"});
  EXPECT_NEAR(s->lr(0), 1.0 / 3, 1e-12);
  EXPECT_NEAR(s->lr(3), 0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi / 7)), 1e-12);
  EXPECT_NEAR(s->lr(9), 0.1, 1e-12);
}

TEST(Plateau, FallsAfterPatienceAndContinuesFromItsState) {
  const ScheduleOptions options{.lr = 1, .kwargs_json = R"({"patience": 1, "factor": 0.5, "cooldown": 1})"};
  const auto s = make_schedule("reduce_lr_on_plateau", options);
  EXPECT_TRUE(s->listens());
  const auto after = [&](double metric) {
    s->observe(metric);
    return s->lr(0);
  };
  EXPECT_EQ(after(3.0), 1);
  EXPECT_EQ(after(2.0), 1);
  EXPECT_EQ(after(2.0), 1);    // bad 1
  EXPECT_EQ(after(2.1), 0.5);  // bad 2 > patience
  const auto copy = make_schedule("reduce_lr_on_plateau", options);
  copy->load_state(s->state());
  for (double metric : {2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0}) {
    copy->observe(metric);
    EXPECT_EQ(after(metric), copy->lr(0));
  }
  EXPECT_LT(s->lr(0), 0.5);
}

}  // namespace
}  // namespace tessera::optim
