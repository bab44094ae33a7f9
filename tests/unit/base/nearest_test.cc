#include "base/nearest.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
  EXPECT_EQ(edit_distance("", "abc"), 3);
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

}  // namespace
}  // namespace tessera
