#pragma once
// Metrics as JSON Lines: one object a row, flushed as it is written, so that a killed run keeps what it measured.
#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/held_name.h"

namespace tessera::report {

/// What a run that goes on from a checkpoint finds in its metrics file and will write again: the rows of the steps
/// after it. They are dropped; the file is replaced at once. log_history: the checkpoint's, by which its place in the
/// file is found, so that rows of other runs in the same file stay; step: the checkpoint's. Nothing where there is no
/// such file.
void drop_rows_after(const std::string& path, const nlohmann::json& log_history, std::int64_t step);

class MetricsFile {
 public:
  /// Appends to the file (an empty path: writes nothing), after its last whole row: half of one, which a killed run may
  /// leave, is cut off. DataError when it cannot be opened.
  explicit MetricsFile(const std::string& path);
  /// Adds "time": seconds since 1970. DataError when that fails, CheckpointError when the file was removed.
  void write(nlohmann::ordered_json row);
  /// For who watches over the file from now on, so that all ranks learn of its loss: write() no longer looks.
  HeldName hand_over_name() { return std::exchange(name_, std::nullopt).value(); }

 private:
  std::string path_;
  std::ofstream out_;
  std::optional<HeldName> name_;
};

}  // namespace tessera::report
