#include "report/terminal_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace tessera::report {
namespace {

TEST(Sparkline, ShowsMeansFromTheLowestToTheHighest) {
  EXPECT_EQ(sparkline({{1, 0}, {2, 1}, {3, 2}, {4, 3}}, 4), "▁▃▆█");
  EXPECT_EQ(sparkline({{1, 0}, {2, 2}, {3, 8}, {4, 8}}, 2), "▁█") << "two steps a cell: 1 and 8";
  EXPECT_EQ(sparkline({{1, 0}, {2, 7}}, 50), "▁█") << "no more cells than steps";
  EXPECT_EQ(sparkline({{10, 1}, {40, 2}}, 3), "▁▁█") << "nothing between: the value before";
  EXPECT_EQ(sparkline({{5, 3}}, 10), "▅");
  EXPECT_EQ(sparkline({}, 10), "");
}

TEST(Sparkline, MarksWhatIsNoNumberAndShowsTheRest) {
  EXPECT_EQ(sparkline({{1, 1}, {2, NAN}, {3, 2}}, 3), "▁×█");
  EXPECT_EQ(sparkline({{1, INFINITY}}, 3), "×");
  EXPECT_EQ(sparkline({{1, -1.7e308}, {2, 1.7e308}, {3, 1}}, 3), "××▅") << "their range is no number";
}

RunRecord run_of_forty() {
  RunRecord run;
  run.name = "out";
  run.last_step = 10;
  run.max_steps = 40;
  run.epoch = 0.25;
  run.series = {{"eval_loss", {{5, 2.5}, {10, 2.25}}}, {"accuracy", {{10, 0.5}}}, {"loss", {{1, 3}, {10, 2}}}};
  run.planned_mib = {{"all", 412}, {"nothing", 0}};
  run.phase_seconds = {{"training", 75}};
  return run;
}

TEST(TerminalView, SaysHowFarTheRunIsAndTheLastValues) {
  const std::string view = terminal_view(run_of_forty(), 100, 90);
  EXPECT_NE(view.find(" 25%  step 10 of 40, epoch 0.25, 1 min 30 s left\n"), std::string::npos) << view;
  EXPECT_LT(view.find("\nloss "), view.find("\neval_loss ")) << view;
  EXPECT_LT(view.find("\neval_loss "), view.find("\naccuracy ")) << view;
  EXPECT_NE(view.find("2.25 to 2.5\n"), std::string::npos) << view;
  EXPECT_NE(view.find("memory planned            all 412.0 MiB\n"), std::string::npos) << view;
  EXPECT_NE(view.find("time                      training 1 min 15 s\n"), std::string::npos) << view;
  EXPECT_EQ(view.find("has ended"), std::string::npos);
}

TEST(TerminalView, OfAnEndedRunHasNoTimeLeft) {
  RunRecord run = run_of_forty();
  run.summary = {{"train_runtime", 80}};
  const std::string view = terminal_view(run, 100, 90);
  EXPECT_EQ(view.find("left"), std::string::npos) << view;
  EXPECT_TRUE(view.ends_with("the run has ended\n")) << view;
}

TEST(TerminalView, NoLineIsWiderThanTheTerminal) {
  RunRecord run = run_of_forty();
  run.name = std::string(200, 'n');
  run.series[std::string(60, 's')] = {{1, -1.2345678e-10}, {2, 9.8765432e+20}};
  for (int i = 0; i < 40; ++i) run.phase_seconds.emplace_back("phase" + std::to_string(i), 100 + i);
  for (const int columns : {80, 100, 200}) {
    std::istringstream lines(terminal_view(run, columns, 1e7));
    for (std::string line; std::getline(lines, line);) {
      const auto width = std::count_if(line.begin(), line.end(),
                                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
      EXPECT_LE(width, columns) << line;
    }
  }
}

TEST(TerminalView, ListsBeginWithTheSumAndTheLargestAndSayThatTheyAreCut) {
  RunRecord run = run_of_forty();
  run.planned_mib = {{"small part", 2}, {"the largest", 100}, {"another one", 40}, {"the program itself", 30}};
  const std::string whole = "172.0 MiB: the largest 100.0 MiB, another one 40.0 MiB, the program itself 30.0 MiB";
  EXPECT_NE(terminal_view(run, {}).find(whole + ", small part 2.0 MiB\n"), std::string::npos) << terminal_view(run, {});
  const std::string cut = terminal_view(run, 80);
  EXPECT_NE(cut.find("172.0 MiB: the largest 100.0 MiB, ...\n"), std::string::npos) << cut;
}

TEST(TerminalView, HowFarTheRunIsFitsANarrowTerminal) {
  const std::string view = terminal_view(run_of_forty(), 40, 90), line = view.substr(4, view.find('\n', 4) - 4);
  EXPECT_EQ(line, "█░░  25%  step 10 of 40, 1 min 30 s left") << view;
}

}  // namespace
}  // namespace tessera::report
