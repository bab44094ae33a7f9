#pragma once
// Sums of parts as bars that lie below each other, as one SVG.
#include <string>
#include <vector>

#include "report/run_record.h"

namespace tessera::report {

struct Bar {
  std::string label;   // above it
  NamedNumbers parts;  // from left to right
};

/// The names of parts of all bars, each once: a part's place among them is its color in the palette.
std::vector<std::string> part_names(const std::vector<Bar>& bars);

/// All bars to one scale; `text` writes a number with its unit.
std::string svg_of(const std::string& title, const std::vector<Bar>& bars, std::string (*text)(double));

}  // namespace tessera::report
