#pragma once
// A run as lines for a terminal.
#include <optional>
#include <string>

#include "report/run_record.h"

namespace tessera::report {

/// The values over their steps in so many cells, from the lowest ("▁") to the highest ("█"): each cell shows the mean
/// of the values that fall into it, and those of empty cells the one before. A cell with a value that is no number is
/// "×".
std::string sparkline(const Series& values, int cells);

/// How far the run is, the curves with their last values, memory, and where the time went. No line is wider than
/// `columns` (of 76 at least, but for the first two). No columns: the output is no terminal, and nothing is cut.
/// seconds_left: what a watcher saw, where it saw enough.
std::string terminal_view(const RunRecord& run, std::optional<int> columns, std::optional<double> seconds_left = {});

}  // namespace tessera::report
