#include "report/metrics.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::report {

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  out_.open(path_, std::ios::app);
  if (!out_) {
    throw DataError("cannot write the metrics file '" + path_ + "': " + std::strerror(errno) +
                        ". Check that its folder exists and is writable.",
                    path_);
  }
}

void MetricsFile::write(const nlohmann::ordered_json& row) {
  if (path_.empty()) return;
  out_ << row.dump() << '\n' << std::flush;
  if (!out_) throw DataError("writing '" + path_ + "' failed: is the disk full?", path_);
}

}  // namespace tessera::report
