#include "report/terminal_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/quantity_text.h"

namespace tessera::report {
namespace {

constexpr int kNameWidth = 26, kValueWidth = 12, kNarrowest = 76, kWithoutTerminal = 100;

// First what is looked at first; other series follow by name.
const std::vector<std::string> kFirst = {"loss", "eval_loss", "learning_rate", "grad_norm", "tokens_per_second"};

std::string number_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{:.5g}", value);
}

std::string progress_line(const RunRecord& run, int columns, std::optional<double> seconds_left) {
  if (run.max_steps == 0) return fmt::format("step {}, epoch {:.4g}\n", run.last_step, run.epoch);
  const double part = std::clamp(static_cast<double>(run.last_step) / static_cast<double>(run.max_steps), 0.0, 1.0);
  std::string text = fmt::format(" {:3.0f}%  step {} of {}", 100 * part, run.last_step, run.max_steps);
  const std::string epoch = fmt::format(", epoch {:.4g}", run.epoch),
                    left = run.summary.empty() && seconds_left
                               ? ", " + duration_text(std::round(*seconds_left)) + " left"
                               : "";
  constexpr int kShortestBar = 3;
  const auto fits = [&](const std::string& more) {
    return static_cast<int>(text.size() + more.size()) + kShortestBar <= columns;
  };
  if (fits(epoch + left))
    text += epoch + left;
  else if (fits(left))
    text += left;
  const int cells = std::max(0, columns - static_cast<int>(text.size()));
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

/// "412 MiB: state 292 MiB, forward 120 MiB": the largest first, cut where the line ends.
template <class Text>
std::string list_line(const std::string& title, NamedNumbers numbers, std::optional<int> columns, const Text& text) {
  if (numbers.empty()) return "";
  std::erase_if(numbers, [](const auto& item) { return !(item.second > 0); });
  std::sort(numbers.begin(), numbers.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  double total = 0;
  for (const auto& [name, value] : numbers) total += value;
  std::string line = fmt::format("{:<{}}", title, kNameWidth);
  if (numbers.size() > 1) line += text(total) + ": ";
  const std::string more = ", ...";
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::string item = fmt::format("{}{} {}", i == 0 ? "" : ", ", numbers[i].first, text(numbers[i].second));
    const auto behind = i + 1 == numbers.size() ? 0 : more.size();
    if (columns && line.size() + item.size() + behind > static_cast<std::size_t>(*columns)) return line + more + "\n";
    line += item;
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
  const auto has_height = [](double mean) { return std::abs(mean) < 1e300; };  // so that the range is a number
  for (const double mean : means)
    if (has_height(mean)) lowest = std::min(lowest, mean), highest = std::max(highest, mean);
  std::string line;
  for (const double mean : means) {
    if (!has_height(mean)) {
      line += "×";
      continue;
    }
    const double height = highest > lowest ? (mean - lowest) / (highest - lowest) : 0.5;
    line += kHeights[std::min(7, static_cast<int>(height * 8))];
  }
  return line;
}

std::string terminal_view(const RunRecord& run, std::optional<int> terminal, std::optional<double> seconds_left) {
  const int first_lines = terminal.value_or(kWithoutTerminal), columns = std::max(first_lines, kNarrowest);
  std::string out = fmt::format("{:.{}}\n", run.name, first_lines) + progress_line(run, first_lines, seconds_left);
  if (terminal) terminal = columns;
  for (const std::string& name : kFirst)
    if (const auto found = run.series.find(name); found != run.series.end() && !found->second.empty())
      out += curve_line(name, found->second, columns);
  for (const auto& [name, values] : run.series)
    if (!values.empty() && std::find(kFirst.begin(), kFirst.end(), name) == kFirst.end())
      out += curve_line(name, values, columns);
  out += list_line("memory planned", run.planned_mib, terminal, mib_text);
  out += list_line("memory measured at most", run.measured_mib, terminal, mib_text);
  out += list_line("GPU memory planned", run.planned_device_mib, terminal, mib_text);
  out += list_line("GPU memory measured", run.measured_device_mib, terminal, mib_text);
  out += list_line("time", run.phase_seconds, terminal, duration_text);
  if (!run.summary.empty()) out += "the run has ended\n";
  return out;
}

}  // namespace tessera::report
