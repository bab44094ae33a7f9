#include "report/terminal_view.h"
#include "base/quantity_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace tessera::report {
namespace {

constexpr int kNameWidth = 26, kValueWidth = 12, kNarrowest = 76;

// First what is looked at first; other series follow by name.
const std::vector<std::string> kFirst = {"loss", "eval_loss", "learning_rate", "grad_norm", "tokens_per_second"};

std::string number_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.5g}", value);
}

std::string progress_line(const RunRecord& run, int columns, std::optional<double> seconds_left) {
  if (run.max_steps == 0) return fmt::format("step {}, epoch {:.4g}\n", run.last_step, run.epoch);
  const double part = std::clamp(static_cast<double>(run.last_step) / static_cast<double>(run.max_steps), 0.0, 1.0);
  std::string text =
      fmt::format(" {:3.0f}%  step {} of {}, epoch {:.4g}", 100 * part, run.last_step, run.max_steps, run.epoch);
  if (run.summary.empty() && seconds_left) text += ", " + duration_text(std::round(*seconds_left)) + " left";
  const int cells = std::max(10, columns - static_cast<int>(text.size()));
  const int done = static_cast<int>(std::lround(part * cells));
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += i < done ? "█" : "░";
  return bar + text + "\n";
}

std::string curve_line(const std::string& name, const Series& values, int columns) {
  const double last = values.rbegin()->second;
  double lowest = last, highest = last;
  for (const auto& [step, value] : values) {
    lowest = std::fmin(lowest, value);
    highest = std::fmax(highest, value);
  }
  const std::string range = fmt::format("{} to {}", number_text(lowest), number_text(highest));
  const int cells = std::max(8, columns - kNameWidth - kValueWidth - 28);
  return fmt::format("{:<{}.{}} {:>{}}  {}  {}\n", name, kNameWidth - 1, kNameWidth - 1, number_text(last),
                     kValueWidth - 2, sparkline(values, cells), range);
}

/// "forward 120 MiB, state 292 MiB", cut where the line ends.
template <class Text>
std::string list_line(const std::string& title, const NamedNumbers& numbers, int columns, const Text& text) {
  if (numbers.empty()) return "";
  std::string line = fmt::format("{:<{}}", title, kNameWidth);
  bool first = true;
  for (const auto& [name, value] : numbers) {
    if (!(value > 0)) continue;
    const std::string item = fmt::format("{}{} {}", first ? "" : ", ", name, text(value));
    if (static_cast<int>(line.size() + item.size()) > columns) break;
    line += item;
    first = false;
  }
  return line + "\n";
}

}  // namespace

std::string sparkline(const Series& values, int cells) {
  static const char* const kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (values.empty() || cells < 1) return "";
  const auto first = values.begin()->first, last = values.rbegin()->first;
  cells = static_cast<int>(std::min<std::int64_t>(cells, last - first + 1));
  std::vector<std::pair<double, int>> sums(static_cast<std::size_t>(cells));
  for (const auto& [step, value] : values) {
    const auto cell = (step - first) * cells / (last - first + 1);
    sums[static_cast<std::size_t>(cell)].first += value;
    ++sums[static_cast<std::size_t>(cell)].second;
  }
  std::vector<double> means;
  for (const auto& [sum, count] : sums) means.push_back(count > 0 ? sum / count : means.back());
  double lowest = INFINITY, highest = -INFINITY;
  for (const double mean : means)
    if (std::isfinite(mean)) lowest = std::min(lowest, mean), highest = std::max(highest, mean);
  std::string line;
  for (const double mean : means) {
    if (!std::isfinite(mean)) {
      line += "×";
      continue;
    }
    const double height = highest > lowest ? (mean - lowest) / (highest - lowest) : 0.5;
    line += kHeights[std::min(7, static_cast<int>(height * 8))];
  }
  return line;
}

std::string terminal_view(const RunRecord& run, int columns, std::optional<double> seconds_left) {
  columns = std::max(columns, kNarrowest);
  std::string out = fmt::format("{:.{}}\n", run.name, columns) + progress_line(run, columns, seconds_left);
  for (const std::string& name : kFirst)
    if (const auto found = run.series.find(name); found != run.series.end() && !found->second.empty())
      out += curve_line(name, found->second, columns);
  for (const auto& [name, values] : run.series)
    if (!values.empty() && std::find(kFirst.begin(), kFirst.end(), name) == kFirst.end())
      out += curve_line(name, values, columns);
  out += list_line("memory planned", run.planned_mib, columns, mib_text);
  out += list_line("memory measured at most", run.measured_mib, columns, mib_text);
  out += list_line("GPU memory planned", run.planned_device_mib, columns, mib_text);
  out += list_line("GPU memory measured", run.measured_device_mib, columns, mib_text);
  out += list_line("time", run.phase_seconds, columns, duration_text);
  if (!run.summary.empty()) out += "the run has ended\n";
  return out;
}

}  // namespace tessera::report
