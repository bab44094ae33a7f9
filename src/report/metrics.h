#pragma once
// Metrics as JSON Lines: one object a row, flushed as it is written, so that a killed run keeps what it measured.
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::report {

class MetricsFile {
 public:
  /// Appends to the file (an empty path: writes nothing). DataError when it cannot be opened.
  explicit MetricsFile(const std::string& path);
  /// Adds "time": seconds since 1970.
  void write(nlohmann::ordered_json row);

 private:
  std::string path_;
  std::ofstream out_;
};

}  // namespace tessera::report
