#include "e2e/memory_watch.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::bench {
namespace {

std::int64_t mean(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0}) / static_cast<std::int64_t>(values.size());
}

constexpr auto kAnonymous = "00:00 0";

/// Proportional bytes of a process, by device and inode of what is mapped.
std::map<std::string, std::int64_t> proportional_by_file(const std::string& process) {
  std::ifstream in("/proc/" + process + "/smaps");
  std::map<std::string, std::int64_t> bytes;
  std::string file;
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view kField = "Pss:";
    if (line.compare(0, kField.size(), kField) == 0) {
      bytes[file] += std::stoll(line.substr(kField.size())) * 1024;
    } else if (std::isupper(static_cast<unsigned char>(line[0])) == 0) {  // a mapping's head; fields are capitalised
      std::istringstream words(line);
      std::string range, access, offset, device, inode;
      words >> range >> access >> offset >> device >> inode;
      file = device + ' ' + inode;
    }
  }
  return bytes;
}

}  // namespace

MemoryWatch::MemoryWatch(std::vector<std::string> processes)
    : processes_(std::move(processes)), base_(look()), peak_(base_) {
  thread_ = std::thread([this] {
    while (!done_) {
      const auto now = look();
      for (std::size_t i = 0; i < now.size(); ++i) peak_[i] = std::max(peak_[i], now[i]);
      private_peak_ = std::max(private_peak_, private_now_);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

MemoryWatch::~MemoryWatch() {
  stop();
}

void MemoryWatch::stop() {
  done_ = true;
  if (thread_.joinable()) thread_.join();
}

void MemoryWatch::leave_out_what_stays(const std::vector<std::string>& bytes) {
  const auto now = look();
  for (std::size_t i = 0; i < now.size(); ++i)
    base_[i] = std::max<std::int64_t>(base_[i], now[i] - std::stoll(bytes[i]));
}

std::int64_t MemoryWatch::base_bytes() const {
  return mean(base_);
}

std::int64_t MemoryWatch::peak_bytes() const {
  return mean(peak_) - mean(base_);
}

std::vector<std::int64_t> MemoryWatch::look() {
  private_now_ = 0;
  std::vector<std::map<std::string, std::int64_t>> looks;
  std::map<std::string, std::pair<int, std::int64_t>> files;  // how many map it, bytes of all
  for (const auto& process : processes_) {
    for (const auto& [file, bytes] : looks.emplace_back(proportional_by_file(process))) {
      if (file == kAnonymous) private_now_ += bytes;
      auto& [users, sum] = files[file];
      ++users;
      sum += bytes;
    }
  }
  const auto is_shared = [&](const std::string& file) { return file != kAnonymous && files.at(file).first > 1; };
  std::int64_t shared = 0;
  for (const auto& [file, total] : files) {
    if (is_shared(file)) shared += total.second;
  }
  std::vector<std::int64_t> bytes;
  for (const auto& look : looks) {
    std::int64_t& sum = bytes.emplace_back(shared / static_cast<std::int64_t>(processes_.size()));
    for (const auto& [file, own] : look) {
      if (!is_shared(file)) sum += own;
    }
  }
  return bytes;
}

}  // namespace tessera::bench
