#include "report/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/markup.h"

namespace tessera::report {
namespace {

// In the units of the viewBox.
constexpr double kChartWidth = 560, kChartHeight = 240, kLeft = 64, kRight = 546, kTop = 12, kBottom = 204;
constexpr std::size_t kMostMarks = 60;  // of a curve

struct Frame {
  double first_step = 0, last_step = 1, low = 0, high = 1;
  double x(double step) const { return kLeft + (step - first_step) / (last_step - first_step) * (kRight - kLeft); }
  double y(double value) const { return kBottom - (value - low) / (high - low) * (kBottom - kTop); }
};

/// Whether it is a number, and no such one that the range of two has none.
bool is_drawn(double value) {
  return std::abs(value) < 1e300;
}

Frame frame_of(const LineChart& chart) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Frame f{.first_step = kInfinity, .last_step = -kInfinity, .low = kInfinity, .high = -kInfinity};
  for (const Curve& curve : chart.curves) {
    for (const auto& [step, value] : *curve.values) {
      f.first_step = std::min(f.first_step, static_cast<double>(step));
      f.last_step = std::max(f.last_step, static_cast<double>(step));
      if (!is_drawn(value)) continue;
      f.low = std::min(f.low, value);
      f.high = std::max(f.high, value);
    }
  }
  if (f.first_step > f.last_step) f.first_step = 0, f.last_step = 1;
  if (f.first_step == f.last_step) f.first_step -= 1, f.last_step += 1;
  if (f.low > f.high) f.low = 0, f.high = 1;
  const bool touches_zero = f.low >= 0 && f.low < 0.2 * f.high;
  const double room = f.low == f.high ? std::max(std::abs(f.low) * 0.1, 1e-12) : (f.high - f.low) * 0.05;
  f.low = touches_zero ? 0 : f.low - room;
  f.high += room;
  return f;
}

/// Of values that lie so close that they differ in few of their digits only, enough digits to tell them apart.
std::string tick_text(double value, double spacing) {
  if (std::abs(value) < spacing * 1e-6) return "0";
  const std::string text = short_number(value);
  const bool is_exact = std::abs(value) < 10'000 && std::abs(std::stod(text) - value) > spacing * 0.01;
  return is_exact ? fmt::format("{:.{}f}", value, std::max(0, static_cast<int>(std::ceil(-std::log10(spacing)))))
                  : text;
}

std::string axes(const Frame& f) {
  std::string out;
  const auto values = round_ticks(f.low, f.high, 5);
  const double spacing = values.size() > 1 ? values[1] - values[0] : 1;
  for (const double value : values) {
    out += fmt::format("<line class=\"grid\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>", kLeft, f.y(value),
                       kRight, f.y(value));
    out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8,
                       f.y(value) + 4, tick_text(value, spacing));
  }
  out += fmt::format("<line class=\"axis\" x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\"/>\n", kLeft, kBottom, kRight);
  for (const double step : round_ticks(f.first_step, f.last_step, 6)) {
    if (step != std::floor(step)) continue;
    out += fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>", f.x(step), kBottom,
                       kBottom + 4);
    out += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", f.x(step),
                       kBottom + 18, short_number(step));
  }
  return out + fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"end\">step</text>\n", kRight,
                           kChartHeight - 3);
}

/// At most two points for each unit of width, its lowest and its highest: looks as all of them.
std::vector<std::pair<std::int64_t, double>> drawn_points(const Series& values, const Frame& f) {
  std::vector<std::pair<std::int64_t, double>> all(values.begin(), values.end());
  if (static_cast<double>(all.size()) <= 2 * (kRight - kLeft)) return all;
  std::vector<std::pair<std::int64_t, double>> kept;
  for (std::size_t begin = 0; begin < all.size();) {
    const auto column = [&](std::size_t i) { return std::floor(f.x(static_cast<double>(all[i].first))); };
    std::size_t end = begin, low = begin, high = begin;
    for (; end < all.size() && column(end) == column(begin); ++end) {
      if (!is_drawn(all[end].second)) continue;
      if (!(all[low].second <= all[end].second)) low = end;
      if (!(all[high].second >= all[end].second)) high = end;
    }
    kept.push_back(all[std::min(low, high)]);
    if (low != high) kept.push_back(all[std::max(low, high)]);
    begin = end;
  }
  return kept;
}

std::string drawn(const Curve& curve, const Frame& f) {
  std::string path, marks;
  bool is_down = false;
  const auto points = drawn_points(*curve.values, f);
  const bool marked = points.size() <= kMostMarks || curve.is_evaluation;
  for (const auto& [step, value] : points) {
    if (!is_drawn(value)) {
      is_down = false;
      continue;
    }
    const double x = f.x(static_cast<double>(step)), y = f.y(value);
    path += fmt::format("{}{:.1f} {:.1f}", is_down ? " L" : " M", x, y);
    is_down = true;
    if (marked)
      marks += fmt::format("<circle class=\"c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.2\"/>", curve.color, x, y);
  }
  return fmt::format("<path class=\"curve c{}{}\" d=\"{}\"/>{}\n", curve.color, curve.is_evaluation ? " eval" : "",
                     path.empty() ? path : path.substr(1), marks);
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  const double raw_spacing = (high - low) / count, power = std::pow(10, std::floor(std::log10(raw_spacing)));
  double spacing = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= raw_spacing * 0.8) spacing = factor * power;
  std::vector<double> ticks;
  const double first = std::ceil(low / spacing - 1e-9);
  for (int i = 0; i <= 2 * count && (first + i) * spacing <= high + spacing * 1e-9; ++i)  // first + 1 may be first
    ticks.push_back((first + i) * spacing);
  return ticks;
}

std::string svg_of(const LineChart& chart) {
  const Frame f = frame_of(chart);
  std::string out = fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                                kChartWidth, kChartHeight, escaped(chart.title));
  out += axes(f);
  for (const Curve& curve : chart.curves) out += drawn(curve, f);
  return out + fmt::format("<g class=\"hover\"><line y1=\"{}\" y2=\"{}\"/></g>\n</svg>\n", kTop, kBottom);
}

nlohmann::ordered_json data_of(const LineChart& chart) {
  const Frame f = frame_of(chart);
  nlohmann::ordered_json curves = nlohmann::ordered_json::array();
  for (const Curve& curve : chart.curves) {
    nlohmann::ordered_json points = nlohmann::ordered_json::array();
    for (const auto& [step, value] : *curve.values) {
      nlohmann::ordered_json point = {step, is_drawn(value) ? nlohmann::ordered_json(value) : nullptr};
      if (is_drawn(value)) point.push_back(std::round(f.y(value) * 10) / 10);
      points.push_back(std::move(point));
    }
    curves.push_back({{"name", curve.name}, {"color", curve.color}, {"points", std::move(points)}});
  }
  return {{"left", kLeft},
          {"right", kRight},
          {"width", kChartWidth},
          {"steps", {f.first_step, f.last_step}},
          {"curves", std::move(curves)}};
}

}  // namespace tessera::report
