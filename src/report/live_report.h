#pragma once
// A run's page, written while it runs.
#include <chrono>
#include <string>

namespace tessera::report {

/// report.html of a run's folder.
std::string report_path(const std::string& folder);

class LiveReport {
 public:
  explicit LiveReport(std::string folder) : folder_(std::move(folder)) {}
  /// Writes the page anew from the folder's files; leaves it out where the last time was so short ago that more than
  /// one part in fifty of the run would go into pages.
  void refresh();
  /// Writes it in any case.
  void renew();
  /// Writes it for good.
  void finish();

 private:
  std::string folder_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace tessera::report
