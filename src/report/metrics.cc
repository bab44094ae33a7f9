#include "report/metrics.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "base/json_text.h"
#include "base/open_file.h"
#include "base/python_json.h"
#include "tessera/base/error.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Line {
  std::string text;  // without its end
  Json row;          // discarded: not JSON
  std::int64_t step() const {
    return row.contains("step") && row["step"].is_number() ? row["step"].get<std::int64_t>() : 0;
  }
  /// As rows of log_history are. Answers, and a program's own rows at an epoch's end, are in the metrics file alone.
  bool is_logged() const { return !row.contains("samples") && !row.contains("train_seconds"); }
};

/// All but half a line at the end, which a killed run may leave.
std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    Json row = Json::parse(without_non_numbers(line), nullptr, false);
    const bool is_half = end == text.size() && row.is_discarded();
    if (!is_half) lines.push_back({std::move(line), std::move(row)});
    begin = end + 1;
  }
  return lines;
}

bool holds(const Line& line, const Json& logged) {
  if (!line.row.is_object()) return false;
  for (const auto& [key, value] : logged.items())
    if (!line.row.contains(key) || line.row[key] != value) return false;
  return true;
}

/// Where the rows begin that were written after the last one of the history; at the end: it is not there.
std::size_t after_history(const std::vector<Line>& lines, const Json& log_history, std::int64_t step) {
  std::size_t begin = lines.size();
  if (!log_history.empty()) {
    while (begin > 0 && !holds(lines[begin - 1], log_history.back())) --begin;
    return begin == 0 ? lines.size() : begin;
  }
  while (begin > 0 && (begin == lines.size() || lines[begin - 1].step() <= lines[begin].step())) --begin;
  const bool is_other_run = begin < lines.size() && lines[begin].step() < step && lines[begin].is_logged();
  return is_other_run ? lines.size() : begin;
}

/// A row that was not written to its end would spoil the next one.
void end_last_line(const std::string& path) {
  if (!fs::is_regular_file(path)) return;  // a pipe, a terminal, none yet
  const std::string text = read_text_file(path);
  if (text.empty() || text.back() == '\n') return;
  const std::size_t begin = text.rfind('\n') + 1;
  if (Json::accept(without_non_numbers(text.substr(begin)))) {
    std::ofstream(path, std::ios::app) << '\n';
  } else {
    fs::resize_file(path, begin);
  }
}

}  // namespace

void drop_rows_after(const std::string& path, const nlohmann::json& log_history, std::int64_t step) {
  if (!fs::is_regular_file(path)) return;
  const std::vector<Line> lines = lines_of(read_text_file(path));
  const std::size_t begin = after_history(lines, log_history, step);
  std::string kept;
  bool has_dropped = false, is_past = begin < lines.size();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    is_past = is_past && (i <= begin || lines[i - 1].step() <= lines[i].step());  // else another run's, after this one
    const bool drops = is_past && i >= begin && (lines[i].step() > step || lines[i].is_logged());
    has_dropped = has_dropped || drops;
    if (!drops) kept += lines[i].text + "\n";
  }
  if (has_dropped) write_file_atomically(fs::canonical(path).string(), kept);
}

MetricsFile::MetricsFile(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  end_last_line(path_);
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
