#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

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

}  // namespace
}  // namespace tessera::report
