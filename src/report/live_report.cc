#include "report/live_report.h"

#include <filesystem>

#include "base/file.h"
#include "report/page.h"

namespace tessera::report {
namespace {

void write_page(const std::string& folder, PageKind kind) {
  write_file_atomically(report_path(folder), html_page({read_run(folder, folder)}, kind));
}

}  // namespace

std::string report_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "report.html").string();
}

void LiveReport::refresh() {
  if (std::chrono::steady_clock::now() >= next_) renew();
}

void LiveReport::renew() {
  const auto start = std::chrono::steady_clock::now();
  write_page(folder_, PageKind::kLive);
  const auto end = std::chrono::steady_clock::now();
  next_ = end + 50 * (end - start);
}

void LiveReport::finish() {
  write_page(folder_, PageKind::kFinal);
}

}  // namespace tessera::report
