#include "report/metrics.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
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
  name_ = HeldName(path_);
}

void MetricsFile::write(nlohmann::ordered_json row) {
  if (path_.empty()) return;
  row["time"] = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (name_) name_->check();
  out_ << json_text(row) << '\n' << std::flush;
  if (!out_) throw DataError("writing '" + path_ + "' failed: is the disk full?", path_);
}

}  // namespace tessera::report
