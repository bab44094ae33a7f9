#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"
#include "report/memory.h"
#include "report/memory_watch.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "tessera/base/error.h"

namespace tessera::report {
namespace {

std::size_t count(const std::string& text, char c) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), c));
}

TEST(ProgressBar, WritesAboutTenLinesIntoALog) {
  std::ostringstream out;
  ProgressBar bar(out, BarStyle::kPlain, 1000, "train");
  for (int i = 0; i < 1000; ++i) bar.update();
  bar.close();
  EXPECT_GE(count(out.str(), '\n'), 10u);
  EXPECT_LE(count(out.str(), '\n'), 12u);
  EXPECT_NE(out.str().find("train: 100%|"), std::string::npos);
  EXPECT_NE(out.str().find(" 1000/1000 ["), std::string::npos);
}

TEST(ProgressBar, RedrawsInPlaceOnATerminalAndEndsTheLine) {
  std::ostringstream out;
  {
    ProgressBar bar(out, BarStyle::kTerminal, 3);
    bar.set_postfix("loss=1.5");
    bar.update(3);
  }
  EXPECT_EQ(count(out.str(), '\n'), 1u);
  EXPECT_EQ(out.str().front(), '\r');
  EXPECT_NE(out.str().find("3/3"), std::string::npos);
  EXPECT_NE(out.str().find("loss=1.5"), std::string::npos);
}

TEST(ProgressBar, TakesNoMoreColumnsThanTheTerminalHas) {
  EXPECT_EQ(first_columns("██ 2/3", 3), "██ ");
  EXPECT_EQ(first_columns("██ 2/3", 6), "██ 2/3");
  EXPECT_EQ(first_columns("██ 2/3", 100), "██ 2/3");
  EXPECT_EQ(first_columns("██", 0), "");
}

TEST(ProgressBar, SaysNothingWhenOff) {
  std::ostringstream out;
  ProgressBar bar(out, BarStyle::kOff, 10);
  bar.update(10);
  bar.close();
  EXPECT_TRUE(out.str().empty());
}

TEST(MetricsFile, AppendsOneObjectALine) {
  const std::string path = testing::TempDir() + "metrics_test.jsonl";
  std::filesystem::remove(path);
  {
    MetricsFile(path).write({{"step", 1}, {"loss", 2.5}});
  }
  {
    MetricsFile(path).write({{"step", 2}, {"loss", 1.5}});
  }
  std::ifstream in(path);
  std::string first, second, none;
  std::getline(in, first);
  std::getline(in, second);
  EXPECT_EQ(nlohmann::json::parse(first)["loss"], 2.5);
  EXPECT_GT(nlohmann::json::parse(first)["time"].get<double>(), 1.7e9) << "seconds since 1970";
  EXPECT_EQ(nlohmann::json::parse(second)["step"], 2);
  EXPECT_FALSE(std::getline(in, none));
}

TEST(MetricsFile, BeginsARowAfterHalfOfOneThatAKilledRunLeft) {
  const std::string path = testing::TempDir() + "metrics_half.jsonl";
  for (const auto& [before, after] :
       {std::pair{"{\"step\": 1}\n{\"step\": 2, \"lo", "{\"step\": 1}\n"}, std::pair{"{\"ste", ""},
        std::pair{"{\"step\": 1, \"loss\": NaN}", "{\"step\": 1, \"loss\": NaN}\n"}}) {
    std::ofstream(path) << before;
    MetricsFile file(path);
    EXPECT_EQ(read_file(path), after);
  }
}

/// A file with a row of each step: "5" logged, "5a" answers, "5e" a program's row at an epoch's end, "5s" a run's last
/// row.
std::string metrics_of(const std::vector<std::string>& rows) {
  std::string text;
  for (const std::string& row : rows) {
    nlohmann::json json = {{"step", std::stoi(row)}, {"time", 1.5}};
    if (row.ends_with("a"))
      json["samples"] = nlohmann::json::array();
    else if (row.ends_with("e"))
      json["train_seconds"] = 2.0;
    else if (row.ends_with("s"))
      json["train_runtime"] = 2.0;
    else
      json.update({{"loss", std::stoi(row) + 0.1}, {"train_loss_exact", 0.125}});
    text += json.dump() + "\n";
  }
  return text;
}

TEST(MetricsFile, LosesTheRowsThatARunWritesAgainWhenItGoesOnAndNoOthers) {
  using Rows = std::vector<std::string>;
  struct Case {
    const char* what;
    std::int64_t step, logged;  // of the checkpoint, and of the last row of its history; -1: it is empty
    Rows before, after;
  };
  const std::string path = testing::TempDir() + "metrics_again.jsonl";
  for (const auto& c : {
           Case{"killed after two more steps", 5, 5, {"3", "4", "5", "6", "7"}, {"3", "4", "5"}},
           Case{"nothing to drop", 5, 5, {"4", "5"}, {"4", "5"}},
           Case{"the last row before the checkpoint is older", 5, 3, {"3", "6", "9"}, {"3"}},
           Case{"answers and a row of an epoch belong to the row before",
                5,
                5,
                {"5", "5a", "5e", "6", "6a", "6e"},
                {"5", "5a", "5e"}},
           Case{"the last row of a run that had ended", 5, 5, {"4", "5", "5a", "5s"}, {"4", "5", "5a"}},
           Case{"an epoch's row without others", 5, 3, {"3", "5e", "10e"}, {"3", "5e"}},
           Case{"no row yet", 5, -1, {"6", "7"}, {}},
           Case{"no row yet, behind another run", 5, -1, {"10", "20", "6", "7"}, {"10", "20"}},
           Case{"another run of the same file came afterwards",
                5,
                5,
                {"5", "6", "7", "0", "1", "7"},
                {"5", "0", "1", "7"}},
           Case{"only rows of another run", 5, -1, {"1", "6", "7"}, {"1", "6", "7"}},
           Case{"rows of another run, not of this one", 5, 5, {"4", "6", "7"}, {"4", "6", "7"}},
       }) {
    SCOPED_TRACE(c.what);
    std::ofstream(path) << metrics_of(c.before);
    nlohmann::json history = nlohmann::json::array();
    if (c.logged >= 0)
      history = {{{"step", 1}, {"loss", 9}}, {{"step", c.logged}, {"loss", static_cast<double>(c.logged) + 0.1}}};
    drop_rows_after(path, history, c.step);
    EXPECT_EQ(read_file(path), metrics_of(c.after));
  }
  EXPECT_NO_THROW(drop_rows_after("/dev/null", nlohmann::json::array(), 5)) << "not a file that could be cut";
  EXPECT_NO_THROW(drop_rows_after(path + ".none", nlohmann::json::array(), 5));
}

TEST(MetricsFile, NamesThePathThatCannotBeOpened) {
  try {
    MetricsFile("/nonexistent/folder/m.jsonl");
    FAIL();
  } catch (const DataError& e) {
    EXPECT_EQ(e.file, "/nonexistent/folder/m.jsonl");
  }
}

TEST(MetricsFile, ThatIsRemovedIsNamedAtTheNextRow) {
  const std::string path = testing::TempDir() + "metrics_removed.jsonl";
  MetricsFile file(path);
  file.write({{"step", 1}});
  std::filesystem::remove(path);
  try {
    file.write({{"step", 2}});
    FAIL();
  } catch (const CheckpointError& e) {
    EXPECT_NE(std::string(e.what()).find("'" + path + "' was removed"), std::string::npos) << e.what();
  }
}

TEST(ProcessMemory, ThePeakIsAtLeastWhatIsResident) {
  const ProcessMemory m = process_memory();
  EXPECT_GT(m.resident_bytes, 1 << 20);
  EXPECT_GE(m.peak_resident_bytes, m.resident_bytes);
  EXPECT_GT(m.proportional_bytes, 0);
}

TEST(MemoryWatch, RemembersThePeakItsPhaseAndWhetherTheLimitWasPassed) {
  constexpr std::size_t kBytes = 64 << 20;
  const auto before = process_memory().proportional_bytes;
  MemoryWatch roomy(before + 4 * static_cast<std::int64_t>(kBytes)),
      tight(before + static_cast<std::int64_t>(kBytes) / 2);
  tight.enter("the large part");
  {
    const std::vector<char> large(kBytes, 1);
    EXPECT_GE(tight.peak().memory.proportional_bytes, before + static_cast<std::int64_t>(kBytes) / 2);
    EXPECT_FALSE(roomy.peak().phase.empty());
  }
  tight.enter("afterwards");
  EXPECT_EQ(tight.peak().phase, "the large part");
  EXPECT_GE(tight.peak().memory.anonymous_bytes, static_cast<std::int64_t>(kBytes));
  EXPECT_TRUE(tight.over());
  EXPECT_FALSE(roomy.over());
}

TEST(MemoryWatch, CountsFilesAsTheRanksOfAHostHaveThemInTheMean) {
  const auto files = process_memory().file_bytes;
  ASSERT_GT(files, 1 << 20);
  std::int64_t told = 0;
  MemoryWatch half(0, [&](std::int64_t mine) { return (told = mine) / 2; }),
      more(0, [](std::int64_t mine) { return 2 * mine; });
  const auto a = half.peak().memory, b = more.peak().memory;
  EXPECT_NEAR(static_cast<double>(told), static_cast<double>(files), 0.1 * static_cast<double>(files));
  EXPECT_NEAR(static_cast<double>(a.file_bytes), static_cast<double>(files) / 2, 0.1 * static_cast<double>(files));
  EXPECT_LE(a.proportional_bytes, b.proportional_bytes - files / 3);
  EXPECT_NEAR(static_cast<double>(b.file_bytes), static_cast<double>(files), 0.1 * static_cast<double>(files));
}

}  // namespace
}  // namespace tessera::report
