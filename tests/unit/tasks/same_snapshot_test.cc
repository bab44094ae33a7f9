#include "tasks/same_snapshot.h"

#include <gtest/gtest.h>

#include <atomic>

#include "support/program.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

int refusals_of(const std::function<std::vector<std::string>(int rank)>& paths) {
  std::atomic<int> out{0};
  comm::run_threads(2, [&](const std::shared_ptr<comm::Communicator>& group) {
    try {
      require_same_snapshot(paths(group->rank()), *group);
    } catch (const DataError& e) {
      EXPECT_SAYS(std::string(e.what()), "changed on the Hub");
      ++out;
    }
  });
  return out;
}

int refusals(const std::function<std::string(int rank)>& path) {
  return refusals_of([&](int rank) { return std::vector{path(rank)}; });
}

TEST(SameSnapshot, RanksWithOtherCommitsOfARepositoryAreRefused) {
  const std::string a(40, 'a'), b(40, 'b');
  EXPECT_EQ(refusals([&](int rank) { return "/c/snapshots/" + (rank == 0 ? a : b); }), 2);
  EXPECT_EQ(refusals([&](int rank) { return "/c/snapshots/" + (rank == 0 ? a : b) + "/data/train.jsonl"; }), 2);
  EXPECT_EQ(refusals([&](int rank) { return (rank == 0 ? "/c/snapshots/" : "/d/snapshots/") + a; }), 0);
  EXPECT_EQ(refusals([&](int rank) { return "/models/" + (rank == 0 ? a : b); }), 0);  // folders of one's own
}

TEST(SameSnapshot, HowManyFilesARankReadsIsNoMatter) {
  const std::string train = "/c/snapshots/" + std::string(40, 'a') + "/train.jsonl";
  EXPECT_EQ(refusals_of([&](int rank) { return std::vector<std::string>(static_cast<std::size_t>(rank), "/data"); }),
            0);
  EXPECT_EQ(refusals_of([&](int rank) { return std::vector(static_cast<std::size_t>(rank + 1), train); }), 0);
}

}  // namespace
}  // namespace tessera::tasks
