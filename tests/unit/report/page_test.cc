// The page of runs: well-formed, complete, alone.
#include "report/page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/bar_chart.h"
#include "report/line_chart.h"
#include "report/markup.h"

namespace tessera::report {
namespace {

using nlohmann::json;

/// What is wrong with the page as XML: tags that do not close each other, attributes without quotes, stray < or &.
/// Empty: nothing.
std::string malformed(const std::string& page) {
  std::vector<std::string> open;
  std::size_t at = page.find('\n');  // behind <!DOCTYPE html>
  while ((at = page.find_first_of("<&", at)) != std::string::npos) {
    const std::string here = page.substr(at, 60);
    if (page[at] == '&') {
      const auto end = page.find(';', at);
      if (end == std::string::npos || end - at > 5) return "a stray &: " + here;
      at = end;
      continue;
    }
    const auto end = page.find('>', at);
    if (end == std::string::npos) return "a tag without end: " + here;
    const std::string tag = page.substr(at + 1, end - at - 1);
    if (std::count(tag.begin(), tag.end(), '"') % 2 != 0 || tag.find('<') != std::string::npos) return "a tag: " + here;
    const std::string name = tag.substr(0, tag.find_first_of(" \n/", 1));
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return "closes nothing: " + here;
      open.pop_back();
    } else if (!tag.ends_with('/')) {
      open.push_back(name);
    }
    at = end;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

json values_in(const std::string& page) {
  const std::string begin = "type=\"application/json\">";
  const auto from = page.find(begin) + begin.size();
  return json::parse(page.substr(from, page.find("</script>", from) - from));
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

RunRecord sample_run(const std::string& name, double shift) {
  RunRecord run;
  run.name = name;
  for (int step = 1; step <= 30; ++step) {
    run.series["loss"][step] = 3 - 0.05 * step + shift;
    run.series["learning_rate"][step] = 1e-3 / step;
    run.series["rewards/margins"][step] = 0.1 * step;
  }
  run.series["eval_loss"] = {{10, 2.6 + shift}, {20, std::numeric_limits<double>::quiet_NaN()}, {30, 1.7 + shift}};
  run.last_step = run.max_steps = 30;
  run.summary = {{"train_runtime", 65}};
  run.planned_mib = {{"frozen weights", 700}, {"the program", 110}};
  run.measured_mib = {{"own memory", 600}};
  run.phase_seconds = {{"forward and backward", 60}, {"update", 5}};
  run.samples[10] = {{"Is 1 < 2 & 3?", "yes", "</script><b>no"}};
  run.configuration = {{"learning_rate", shift > 0 ? "0.002" : "0.001"}, {"packing", "true"}};
  return run;
}

TEST(Page, IsWellFormedWhateverTheTextsHold) {
  EXPECT_EQ(malformed("<!DOCTYPE html>\n<html><p a=\"1\">x</p><br/></html>"), "");
  for (const char* bad : {"\n<p>", "\n<p></b>", "\n<p a=\"1></p>", "\na & b", "\n<p></p></p>"})
    EXPECT_NE(malformed(bad), "") << bad;
  for (const auto& runs : {std::vector{sample_run("a", 0)}, std::vector{sample_run("<&>\"", 0), sample_run("b", 1)},
                           std::vector{RunRecord()}}) {
    for (const auto kind : {PageKind::kFinal, PageKind::kLive}) EXPECT_EQ(malformed(html_page(runs, kind)), "");
  }
}

TEST(Page, ShowsAGpusMemoryWhereARunHasIt) {
  auto run = sample_run("a", 0);
  EXPECT_EQ(html_page({run}).find("GPU"), std::string::npos);
  run.planned_device_mib = {{"optimizer state", 300}};
  run.measured_device_mib = {{"all", 310}};
  const auto page = html_page({run});
  EXPECT_NE(page.find("planned, GPU"), std::string::npos);
  EXPECT_NE(page.find("measured at most, GPU"), std::string::npos);
}

TEST(Page, LoadsNothing) {
  const std::string page = html_page({sample_run("a", 0), sample_run("b", 1)});
  for (const char* outside : {"http", "//", "src=", "href=", "url(", "@import", "<link", "fetch(", "import("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

TEST(Page, HoldsAllValuesOfAllRunsUnrounded) {
  const std::vector<RunRecord> runs = {sample_run("a", 0), sample_run("b", 0.123456789012345)};
  const std::string page = html_page(runs);
  const json charts = values_in(page);
  ASSERT_EQ(charts.size(), 3u);  // loss with its evaluations, the rate, the margins
  EXPECT_EQ(count_of(page, "<svg class=\"chart\""), 3u);
  ASSERT_EQ(charts[0]["curves"].size(), 4u);
  const std::vector<std::pair<std::size_t, std::string>> curves = {
      {0, "loss"}, {0, "eval_loss"}, {1, "loss"}, {1, "eval_loss"}};
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto& [run, name] = curves[i];
    const json& curve = charts[0]["curves"][i];
    EXPECT_EQ(curve["name"], runs[run].name + " " + name);
    const Series& values = runs[run].series.at(name);
    ASSERT_EQ(curve["points"].size(), values.size());
    auto value = values.begin();
    for (const json& point : curve["points"]) {
      EXPECT_EQ(point[0], value->first);
      if (std::isnan(value->second))
        EXPECT_TRUE(point[1].is_null());
      else
        EXPECT_EQ(point[1].get<double>(), value->second);
      ++value;
    }
  }
}

TEST(Page, ShowsMemoryTimeAnswersAndSettings) {
  const std::string one = html_page({sample_run("a", 0)}), two = html_page({sample_run("a", 0), sample_run("b", 1)});
  for (const char* part : {"frozen weights: 700.0 MiB", ">810.0 MiB<", ">600.0 MiB<", "forward and backward: 1 min 0 s",
                           ">1 min 5 s<", "Is 1 &lt; 2 &amp; 3?", "&lt;/script&gt;&lt;b&gt;no", "finished, 30 steps",
                           "rewards/margins", "<code>0.001</code>"})
    EXPECT_NE(one.find(part), std::string::npos) << part;
  EXPECT_EQ(one.find("<tr class=\"differs\""), std::string::npos);
  EXPECT_EQ(count_of(two, "<tr class=\"differs\"><td>learning_rate</td>"), 1u);
  EXPECT_EQ(two.find("<tr class=\"differs\"><td>packing</td>"), std::string::npos);
}

TEST(Page, IsReadAgainOnlyWhileTheRunGoesOn) {
  EXPECT_EQ(html_page({sample_run("a", 0)}, PageKind::kFinal).find("reload"), std::string::npos);
  EXPECT_NE(html_page({sample_run("a", 0)}, PageKind::kLive).find("location.reload()"), std::string::npos);
}

TEST(LineCharts, TicksAreRoundNumbersInsideTheRange) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(3, 97, 5), (std::vector<double>{20, 40, 60, 80}));
  for (const auto& [low, high] :
       std::vector<std::pair<double, double>>{{-2e-5, 1e-4}, {1e6, 1.0001e6}, {0.999, 1.001}, {-5, -1}}) {
    const auto ticks = round_ticks(low, high, 5);
    EXPECT_GE(ticks.size(), 3u) << low << " " << high;
    EXPECT_LE(ticks.size(), 11u) << low << " " << high;
    for (const double tick : ticks) EXPECT_TRUE(tick >= low - 1e-9 && tick <= high * (1 + 1e-9) + 1e-9) << tick;
  }
}

TEST(LineCharts, LargeValuesThatAreNearlyEqualHaveFewTicks) {
  EXPECT_LE(round_ticks(1e17, 1e17 + 16, 5).size(), 11u);
  const Series near = {{1, 1e17}, {2, 1e17 + 16}}, far = {{1, -1.7e308}, {2, 1.7e308}, {3, 1}};
  for (const Series* values : {&near, &far}) {
    const std::string svg = svg_of({.title = "t", .curves = {{.name = "x", .values = values}}});
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  }
}

TEST(LineCharts, LongCurvesAreDrawnByTheirExtremesAndKeepAllValues) {
  Series values;
  for (int step = 0; step < 100'000; ++step) values[step] = std::sin(step * 0.01);
  values[50'000] = 7;  // a spike of one step
  const LineChart chart{.title = "long", .curves = {{.name = "loss", .values = &values}}};
  const std::string svg = svg_of(chart);
  EXPECT_LT(svg.size(), 60'000u);
  double highest = 1e9;  // the smallest y of the path is its top
  const auto path = svg.substr(svg.find("d=\"") + 3);
  for (std::size_t at = 0; at < path.find('"'); at = path.find_first_of("ML", at + 1)) {
    char* end = nullptr;
    std::strtod(path.c_str() + at + 1, &end);
    highest = std::min(highest, std::strtod(end, &end));
  }
  EXPECT_LT(highest, 25) << "the spike is drawn at the top of the chart";
  EXPECT_EQ(data_of(chart)["curves"][0]["points"].size(), values.size());
}

TEST(LineCharts, AValueThatIsNoNumberLeavesAGap) {
  const Series values = {{1, 1.0}, {2, 2.0}, {3, NAN}, {4, 2.0}, {5, INFINITY}, {6, 1.0}, {7, 1.5}};
  const std::string svg = svg_of({.title = "t", .curves = {{.name = "loss", .values = &values}}});
  const auto path = svg.substr(svg.find("d=\""), svg.find('"', svg.find("d=\"") + 3) - svg.find("d=\""));
  EXPECT_EQ(count_of(path, "M"), 3u) << path;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(LineCharts, OnePointAndEqualValuesHaveAFrame) {
  const Series one = {{5, 0.0}}, equal = {{1, 2.0}, {2, 2.0}}, none = {};
  for (const Series* values : {&one, &equal, &none}) {
    const std::string svg = svg_of({.title = "t", .curves = {{.name = "x", .values = values}}});
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
    EXPECT_EQ(count_of(svg, "<circle"), values->size());
  }
}

TEST(BarCharts, WidthsAreInProportion) {
  const std::string svg =
      svg_of("t", {{"a", {{"x", 300}, {"y", 150}}}, {"b", {{"y", 45}}}}, [](double v) { return short_number(v); });
  EXPECT_NE(svg.find("class=\"f0\" x=\"0.0\" y=\"20\" width=\"300.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("class=\"f1\" x=\"300.0\" y=\"20\" width=\"150.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("class=\"f1\" x=\"0.0\" y=\"66\" width=\"45.0\""), std::string::npos) << svg;
}

TEST(Markup, NumbersAreShort) {
  EXPECT_EQ(short_number(0.0001), "0.0001");
  EXPECT_EQ(short_number(1.5e-5), "1.5e-5");
  EXPECT_EQ(short_number(12500), "12,500");
  EXPECT_EQ(short_number(NAN), "not a number");
}

}  // namespace
}  // namespace tessera::report
