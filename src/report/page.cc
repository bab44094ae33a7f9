#include "report/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/json_text.h"
#include "base/quantity_text.h"
#include "report/bar_chart.h"
#include "report/line_chart.h"
#include "report/markup.h"
#include "report/page_assets.h"

namespace tessera::report {
namespace {

using Runs = std::vector<RunRecord>;

int color_of(std::size_t run) {
  return static_cast<int>(run) % kColors;
}

std::string cell(const std::string& tag, const std::string& text) {
  return fmt::format("<{0}>{1}</{0}>", tag, escaped(text));
}

// Titles of what most runs have, in the order in which they are shown.
constexpr std::pair<const char*, const char*> kTitles[] = {
    {"loss", "Loss"},
    {"learning_rate", "Learning rate"},
    {"grad_norm", "Gradient norm"},
    {"tokens_per_second", "Tokens a second"},
    {"model_flops_utilization", "Share of the machine's matrix rate"}};

std::string title_of(const std::string& measured) {
  for (const auto& [name, title] : kTitles)
    if (measured == name) return title;
  return measured;
}

/// A chart for each thing that is measured, on all runs; those of kTitles first.
std::vector<LineChart> charts_of(const Runs& runs) {
  std::vector<std::string> measured;
  std::set<std::string> others;
  for (const RunRecord& run : runs)
    for (const auto& [name, values] : run.series) others.insert(measured_by(name));
  for (const auto& [name, title] : kTitles)
    if (others.erase(name) > 0) measured.emplace_back(name);
  measured.insert(measured.end(), others.begin(), others.end());
  std::vector<LineChart> charts;
  for (const std::string& name : measured) {
    LineChart chart{.title = title_of(name), .curves = {}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
      for (const auto& series : {name, "eval_" + name}) {
        const auto found = runs[i].series.find(series);
        if (found == runs[i].series.end()) continue;
        chart.curves.push_back({.name = runs.size() > 1 ? runs[i].name + " " + series : series,
                                .color = color_of(i),
                                .is_evaluation = series != name,
                                .values = &found->second});
      }
    }
    charts.push_back(std::move(chart));
  }
  return charts;
}

std::string run_legend(const Runs& runs) {
  if (runs.size() < 2) return {};
  std::string out = "<div class=\"legend\">";
  for (std::size_t i = 0; i < runs.size(); ++i)
    out += fmt::format("<span><i class=\"c{}\"></i>{}</span>", color_of(i), escaped(runs[i].name));
  return out + "</div>\n";
}

std::string curve_legend(const LineChart& chart) {
  const auto is_evaluation = [](const Curve& curve) { return curve.is_evaluation; };
  const auto count = std::count_if(chart.curves.begin(), chart.curves.end(), is_evaluation);
  if (count == 0) return {};
  std::string out = "<div class=\"legend\">";
  if (count < static_cast<std::ptrdiff_t>(chart.curves.size())) out += "<span><i></i>training</span>";
  return out + "<span><i class=\"eval\"></i>evaluation</span></div>\n";
}

std::string curves_section(const Runs& runs, const std::vector<LineChart>& charts) {
  std::string out = "<h2>Curves</h2>\n" + run_legend(runs) + "<div class=\"grid\">\n";
  for (const LineChart& chart : charts)
    out += "<div class=\"card\">" + cell("h3", chart.title) + curve_legend(chart) + svg_of(chart) + "</div>\n";
  return charts.empty() ? "" : out + "</div>\n";
}

/// Without the parts that nobody would see.
NamedNumbers visible(const NamedNumbers& parts) {
  double sum = 0;
  for (const auto& [name, value] : parts) sum += value;
  NamedNumbers out;
  for (const auto& part : parts)
    if (part.second > 0.002 * sum) out.push_back(part);
  return out;
}

std::string bars_card(const std::string& title, const std::vector<Bar>& bars, std::string (*text)(double)) {
  if (bars.empty()) return {};
  std::string out = "<div class=\"card\">" + cell("h3", title) + "<div class=\"legend\">";
  const auto names = part_names(bars);
  for (std::size_t i = 0; i < names.size(); ++i)
    out += fmt::format("<span><i class=\"box c{}\"></i>{}</span>", color_of(i), escaped(names[i]));
  return out + "</div>\n" + svg_of(title, bars, text) + "</div>\n";
}

std::string cost_section(const Runs& runs) {
  std::vector<Bar> memory, time;
  for (const RunRecord& run : runs) {
    const std::string whose = runs.size() > 1 ? run.name + ": " : "";
    if (!run.planned_mib.empty()) memory.push_back({whose + "planned", visible(run.planned_mib)});
    if (!run.measured_mib.empty()) memory.push_back({whose + "measured at most", visible(run.measured_mib)});
    if (!run.planned_device_mib.empty()) memory.push_back({whose + "planned, GPU", visible(run.planned_device_mib)});
    if (!run.measured_device_mib.empty())
      memory.push_back({whose + "measured at most, GPU", visible(run.measured_device_mib)});
    if (!run.phase_seconds.empty())
      time.push_back({runs.size() > 1 ? run.name : "this run", visible(run.phase_seconds)});
  }
  if (memory.empty() && time.empty()) return {};
  return "<h2>Memory and time</h2>\n<div class=\"grid\">\n" + bars_card("Memory of a rank", memory, mib_text) +
         bars_card("Time by phase", time, duration_text) + "</div>\n";
}

std::optional<double> last_value(const RunRecord& run, const std::string& name) {
  const auto found = run.series.find(name);
  if (found == run.series.end() || found->second.empty()) return std::nullopt;
  return found->second.rbegin()->second;
}

std::optional<double> lowest_value(const RunRecord& run, const std::string& name) {
  std::optional<double> lowest;
  if (const auto found = run.series.find(name); found != run.series.end())
    for (const auto& [step, value] : found->second)
      if (std::isfinite(value)) lowest = std::min(lowest.value_or(value), value);
  return lowest;
}

std::optional<double> summary_value(const RunRecord& run, const std::string& name) {
  const auto found = run.summary.find(name);
  return found == run.summary.end() ? std::nullopt : std::optional(found->second);
}

std::string number_text(std::optional<double> value) {
  return value ? short_number(*value) : "";
}

std::string state_text(const RunRecord& run) {
  const auto steps = std::to_string(run.last_step);
  if (!run.summary.empty()) return "finished, " + steps + " steps";
  return run.max_steps > 0 ? fmt::format("step {} of {}", steps, run.max_steps) : "step " + steps;
}

std::string overview(const Runs& runs) {
  using Text = std::function<std::string(const RunRecord&)>;
  const std::vector<std::pair<std::string, Text>> rows = {
      {"state", state_text},
      {"epochs", [](const RunRecord& r) { return short_number(std::round(r.epoch * 100) / 100); }},
      {"last loss", [](const RunRecord& r) { return number_text(last_value(r, "loss")); }},
      {"last evaluation loss", [](const RunRecord& r) { return number_text(last_value(r, "eval_loss")); }},
      {"lowest evaluation loss", [](const RunRecord& r) { return number_text(lowest_value(r, "eval_loss")); }},
      {"time",
       [](const RunRecord& r) {
         const auto seconds = summary_value(r, "train_runtime");
         return seconds ? duration_text(*seconds) : "";
       }},
      {"tokens a second", [](const RunRecord& r) { return number_text(summary_value(r, "train_tokens_per_second")); }},
      {"share of the machine's matrix rate", [](const RunRecord& r) {
         const auto part = summary_value(r, "model_flops_utilization");
         return part ? fmt::format("{:.0f}%", *part * 100) : "";
       }}};
  std::string out = "<div class=\"card scrolls\"><table>\n";
  if (runs.size() > 1) {
    out += "<tr><th></th>";
    for (const RunRecord& run : runs) out += cell("th", run.name);
    out += "</tr>\n";
  }
  for (const auto& [name, text] : rows) {
    std::string values;
    bool any = false;
    for (const RunRecord& run : runs) {
      const std::string value = text(run);
      any = any || !value.empty();
      values += cell("td", value);
    }
    if (any) out += "<tr>" + cell("th", name) + values + "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string answers_of(const RunRecord& run) {
  std::vector<std::string> order;
  std::map<std::string, std::string> rows, expected;  // by prompt
  for (const auto& [step, samples] : run.samples) {
    for (const AnswerSample& s : samples) {
      if (!expected.contains(s.prompt)) order.push_back(s.prompt);
      expected[s.prompt] = s.expected;
      rows[s.prompt] +=
          fmt::format("<tr><td>step {}</td><td class=\"answer\"><div>{}</div></td></tr>\n", step, escaped(s.generated));
    }
  }
  std::string out;
  for (const std::string& prompt : order) {
    out += "<div class=\"card\"><details open=\"open\"><summary class=\"answer\">" + escaped(prompt) +
           "</summary>\n<table class=\"answers\">\n" + rows[prompt] +
           "<tr><th>expected</th><td class=\"answer\"><div>" + escaped(expected[prompt]) +
           "</div></td></tr>\n</table></details></div>\n";
  }
  return out;
}

std::string samples_section(const Runs& runs) {
  std::string out;
  for (const RunRecord& run : runs) {
    if (run.samples.empty()) continue;
    if (runs.size() > 1) out += cell("h3", run.name);
    out += answers_of(run);
  }
  return out.empty() ? out : "<h2>Answers</h2>\n" + out;
}

/// Settings by name; those that differ between runs are marked.
std::string configuration_section(const Runs& runs) {
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> values;
  for (const RunRecord& run : runs) {
    auto& own = values.emplace_back();
    for (const auto& [name, text] : run.configuration) {
      own.emplace(name, text);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  if (names.empty()) return {};
  std::string out = "<h2>Configuration</h2>\n<div class=\"card scrolls\"><table>\n";
  if (runs.size() > 1) {
    out += "<tr><th></th>";
    for (const RunRecord& run : runs) out += cell("th", run.name);
    out += "</tr>\n";
  }
  for (const std::string& name : names) {
    std::string cells;
    for (auto& own : values) cells += "<td><code>" + escaped(own[name]) + "</code></td>";
    const bool differs =
        std::any_of(values.begin(), values.end(), [&](auto& own) { return own[name] != values[0][name]; });
    out += fmt::format("<tr{}>{}{}</tr>\n", differs ? " class=\"differs\"" : "", cell("td", name), cells);
  }
  return out + "</table></div>\n";
}

/// In a script element: no tag can begin in it.
std::string embedded(const nlohmann::ordered_json& json) {
  std::string out;
  for (const char c : json_text(json)) {
    if (c == '<' || c == '>' || c == '&')
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += c;
  }
  return out;
}

}  // namespace

std::string html_page(const Runs& runs, PageKind kind) {
  const auto charts = charts_of(runs);
  auto values = nlohmann::ordered_json::array();
  for (const LineChart& chart : charts) values.push_back(data_of(chart));
  const std::string title = runs.size() == 1 ? runs[0].name : fmt::format("{} runs", runs.size());
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
  out += cell("title", title + " - tessera report") + "\n<style>" + kPageStyle + "</style>\n</head>\n<body>\n";
  out += cell("h1", title) + "\n<p class=\"sub\">tessera report" +
         std::string(kind == PageKind::kLive ? ", renewed while the run goes on" : "") + "</p>\n";
  out += overview(runs) + curves_section(runs, charts) + cost_section(runs) + samples_section(runs) +
         configuration_section(runs);
  out += "<div id=\"tip\"></div>\n<script id=\"values\" type=\"application/json\">" + embedded(values) + "</script>\n";
  out += "<script>" + std::string(kPageScript) + (kind == PageKind::kLive ? kReloadScript : "") + "</script>\n";
  return out + "</body>\n</html>\n";
}

}  // namespace tessera::report
