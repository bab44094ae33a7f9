#include "terminal/history.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/descriptor.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json_text.h"
#include "base/open_file.h"
#include "tessera/base/error.h"

namespace tessera::terminal {
namespace {

using Lines = std::vector<std::string>;

void write_lines(const std::string& path, const Lines& entries, int flags) {
  std::string lines;
  for (const auto& entry : entries) lines += json_text(nlohmann::json(entry)) + "\n";
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600));
  if (file.get() < 0 || ::write(file.get(), lines.data(), lines.size()) != static_cast<ssize_t>(lines.size()))
    throw DataError(std::string("writing failed: ") + std::strerror(errno), path);
  ::fchmod(file.get(), 0600);
}

/// As the XDG base directory specification has them: for the user alone.
void make_folder(const std::string& folder) {
  if (std::error_code ignored; std::filesystem::is_directory(folder, ignored)) return;
  if (const auto parent = parent_folder(folder); parent != folder) make_folder(parent);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw DataError(std::string("the folder cannot be made: ") + std::strerror(errno), folder);
}

}  // namespace

void History::open(const std::string& path) {
  if (path.empty()) return;
  make_folder(parent_folder(path));
  if (is_there(path)) {
    std::istringstream lines(read_file(path));
    for (std::string line; std::getline(lines, line);) {
      const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (entry.is_string()) entries_.push_back(entry);
    }
  }
  const bool is_long = entries_.size() > 2 * kMost;
  if (is_long) entries_.erase(entries_.begin(), entries_.end() - static_cast<std::ptrdiff_t>(kMost));
  write_lines(path, is_long ? entries_ : Lines(), is_long ? O_TRUNC : O_APPEND);
  path_ = path;
}

void History::add(const std::string& entry) {
  if (entry.empty() || (!entries_.empty() && entries_.back() == entry)) return;
  entries_.push_back(entry);
  if (path_.empty()) return;
  const std::string path = std::exchange(path_, "");
  write_lines(path, {entry}, O_APPEND);
  path_ = path;
}

}  // namespace tessera::terminal
