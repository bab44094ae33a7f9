#include "base/nearest.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
}

TEST(EditDistance, IsItsLimitWhereItWouldBeAsMuchOrMore) {
  const std::vector<std::string> words{
      "", "a", "ab", "ba", "kitten", "sitting", "tikten", "num_processes", "nmu_proceses"};
  for (const auto& a : words)
    for (const auto& b : words)
      for (int limit = 1; limit < 14; ++limit)
        EXPECT_EQ(edit_distance(a, b, limit), std::min(edit_distance(a, b), limit)) << a << ", " << b << ", " << limit;
}

TEST(EditDistance, TreatsCaseAndDashesAsEqual) {
  EXPECT_EQ(edit_distance("Batch-Size", "batch_size"), 0);
}

TEST(Nearest, FindsTheNameThatWasMeant) {
  EXPECT_EQ(nearest("num_proceses", {"num_machines", "num_processes", "use_cpu"}), "num_processes");
}

TEST(Nearest, SaysNothingWhereNoNameIsNear) {
  EXPECT_EQ(nearest("colour", {"num_machines", "use_cpu"}), "");
  EXPECT_EQ(did_you_mean("colour", {"num_machines"}), "");
}

TEST(Nearest, PrefersNamesThatBeginAlikeOrHaveTheSameWords) {
  EXPECT_EQ(nearest("--lora_rank", {"--local_rank", "--lora_r", "--lora_alpha"}), "--lora_r");
  EXPECT_EQ(
      nearest("--per_device_batch_size", {"--per_device_train_batch_size", "--per_device_eval_batch_size", "--device"}),
      "--per_device_train_batch_size");
  EXPECT_EQ(nearest("--optimizer", {"--optim_args", "--optim"}), "--optim");
  EXPECT_EQ(nearest("--lr", {"--lr_groups"}), "") << "too short to be a beginning";
  EXPECT_EQ(nearest("--learning_rates", {"--learning", "--learning_rate"}), "--learning_rate") << "one letter more";
}

}  // namespace
}  // namespace tessera
