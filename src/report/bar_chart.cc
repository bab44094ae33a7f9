#include "report/bar_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/markup.h"

namespace tessera::report {
namespace {

constexpr double kBarsWidth = 560, kBarHeight = 18, kRowHeight = 46, kLongest = 450;

double sum_of(const NamedNumbers& parts) {
  double sum = 0;
  for (const auto& [name, value] : parts) sum += std::isfinite(value) ? value : 0;
  return sum;
}

}  // namespace

std::vector<std::string> part_names(const std::vector<Bar>& bars) {
  std::vector<std::string> names;
  for (const Bar& bar : bars)
    for (const auto& [name, value] : bar.parts)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return names;
}

std::string svg_of(const std::string& title, const std::vector<Bar>& bars, std::string (*text)(double)) {
  double longest = 0;
  for (const Bar& bar : bars) longest = std::max(longest, sum_of(bar.parts));
  const auto names = part_names(bars);
  std::string out = fmt::format("<svg class=\"bars\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                kBarsWidth, static_cast<double>(bars.size()) * kRowHeight, escaped(title));
  double top = 0;
  for (const Bar& bar : bars) {
    out += fmt::format("<text class=\"label\" x=\"0\" y=\"{}\">{}</text>\n", top + 14, escaped(bar.label));
    double left = 0;
    for (const auto& [name, value] : bar.parts) {
      if (!(value > 0) || longest <= 0) continue;
      const double width = value / longest * kLongest;
      const auto color = (std::find(names.begin(), names.end(), name) - names.begin()) % kColors;
      out += fmt::format(
          "<rect class=\"f{}\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"><title>{}: {}</title></rect>",
          color, left, top + 20, std::max(width, 0.5), kBarHeight, escaped(name), text(value));
      left += width;
    }
    out += fmt::format("\n<text class=\"tick\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", left + 8, top + 20 + 13,
                       text(sum_of(bar.parts)));
    top += kRowHeight;
  }
  return out + "</svg>\n";
}

}  // namespace tessera::report
