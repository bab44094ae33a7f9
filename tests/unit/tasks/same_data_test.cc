#include "tasks/same_data.h"

#include <gtest/gtest.h>

#include "support/program.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

struct Data {
  std::vector<data::RowMark> rows;
  std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  data::RowMark mark(std::int64_t i) const { return rows.at(static_cast<std::size_t>(i)); }
};

/// Rows of ten tokens each; row 40 is another one.
Data data_of(std::int64_t rows, std::int64_t other = -1, std::int64_t tokens = 10) {
  Data out;
  for (std::int64_t i = 0; i < rows; ++i)
    out.rows.push_back({i == other ? tokens : 10, static_cast<std::uint32_t>(i == other ? 1000 : i)});
  return out;
}

struct RanksData {
  Data train = data_of(100), eval = data_of(10);
  std::int64_t seed = 42;
  std::string tokenizer = test::kTinyChat;
};

/// What all ranks throw; "": nothing.
std::string refusal(int ranks, const std::function<RanksData(int rank)>& of) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  comm::run_threads(ranks, [&](const std::shared_ptr<comm::Communicator>& group) {
    const RanksData mine = of(group->rank());
    const auto tokenizer = text::open_tokenizer(mine.tokenizer);
    try {
      require_same_data(prepared_rows(&mine.train, &mine.eval), {mine.seed}, *tokenizer, *group);
    } catch (const DataError& e) {
      said[static_cast<std::size_t>(group->rank())] = e.what();
    }
  });
  for (const auto& s : said) EXPECT_EQ(s, said[0]);
  return said[0];
}

std::string refusal(int ranks, int rank, const RanksData& other) {
  return refusal(ranks, [&](int r) { return r == rank ? other : RanksData{}; });
}

TEST(SameData, RanksThatHaveTheSameAreNotRefused) {
  EXPECT_EQ(refusal(3, [](int) { return RanksData{}; }), "");
  EXPECT_EQ(refusal(2, [](int) { return RanksData{.train = data_of(1), .eval = data_of(0)}; }), "");
}

TEST(SameData, NamesTheRankThatLacksRows) {
  const auto said = refusal(3, 1, {.train = data_of(99)});
  EXPECT_SAYS(said,
              "rank 1 does not have the rows to train on that rank 0 has: rank 1 has 99 rows of 990 tokens, rank 0 "
              "has 100 rows of 1,000 tokens; the first 99 are the same. Give all ranks the same data files");
  EXPECT_SAYS(refusal(2, 1, {.train = data_of(101)}), "rank 1 has 101 rows of 1,010 tokens");
}

TEST(SameData, MostRanksAreRight) {
  EXPECT_SAYS(refusal(3, 0, {.train = data_of(99)}), "rank 0 does not have the rows to train on that rank 1 has");
  EXPECT_SAYS(refusal(5, [](int r) { return r == 1 || r == 3 ? RanksData{.train = data_of(99)} : RanksData{}; }),
              "ranks 1, 3 do not have the rows to train on that rank 0 has");
  EXPECT_SAYS(refusal(2, 0, {.train = data_of(99)}), "rank 1 does not have") << "of two, rank 0 counts";
}

TEST(SameData, NamesTheFirstRowThatDiffers) {
  for (const std::int64_t row : {0, 1, 49, 50, 98, 99})
    EXPECT_SAYS(
        refusal(2, 1, {.train = data_of(100, row)}),
        "the first that differs is number " + std::to_string(row + 1) + ", of 10 tokens on rank 1 and 10 on rank 0");
  EXPECT_SAYS(refusal(2, 1, {.train = data_of(90, 40, 12)}), "number 41, of 12 tokens on rank 1 and 10 on rank 0");
}

TEST(SameData, RowsInAnotherOrderAreFound) {
  RanksData other;
  std::swap(other.train.rows[20], other.train.rows[70]);
  EXPECT_SAYS(refusal(2, 1, other), "rank 0 has 100 rows of 1,000 tokens; the first that differs is number 21,");
}

TEST(SameData, RowsToEvaluateOnCount) {
  EXPECT_SAYS(refusal(2, 1, {.eval = data_of(10, 4)}), "rank 1 does not have the rows to evaluate on that rank 0 has");
  EXPECT_SAYS(refusal(2, 1, {.eval = data_of(0)}), "rank 1 has 0 rows of 0 tokens");
}

TEST(SameData, ATokenizerThatDiffersIsTheReason) {
  EXPECT_SAYS(refusal(2, 1, {.train = data_of(100, 7), .tokenizer = test::kDemo + "model"}),
              "Their tokenizers or chat templates are not the same");
}

TEST(SameData, AnotherSeedIsFound) {
  EXPECT_SAYS(refusal(3, 2, {.seed = 7}),
              "rank 2 does not draw rows as rank 0 does: rank 2 by the seed 7, rank 0 by 42. Give all ranks the same "
              "--seed");
}

}  // namespace
}  // namespace tessera::tasks
