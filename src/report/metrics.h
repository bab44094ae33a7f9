#pragma once
// Metrics as JSON Lines: one object a row, flushed as it is written, so that a killed run keeps what it measured.
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/held_name.h"

namespace tessera::report {

class MetricsFile {
 public:
  /// Appends to the file (an empty path: writes nothing). DataError when it cannot be opened.
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
