#pragma once
// Curves over steps as one SVG, with axes; what a script needs to show values under the pointer goes beside it.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/run_record.h"

namespace tessera::report {

struct Curve {
  std::string name;            // shown beside values
  int color = 0;               // of the page's palette
  bool is_evaluation = false;  // dashed, with its points marked
  const Series* values = nullptr;
};

struct LineChart {
  std::string title;
  std::vector<Curve> curves;
};

/// Values that are no numbers leave gaps.
std::string svg_of(const LineChart& chart);

/// {"left", "right", "width", "steps": [first, last], "curves": [{"name", "color", "points": [[step, value], ...]}]}:
/// all values, unrounded.
nlohmann::ordered_json data_of(const LineChart& chart);

/// Round numbers that divide low to high into about `count` parts, the first not below low, the last not above high.
std::vector<double> round_ticks(double low, double high, int count);

}  // namespace tessera::report
