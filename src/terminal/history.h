#pragma once
#include <string>
#include <vector>

namespace tessera::terminal {

/// What was typed before, the oldest first. A file keeps it, one JSON string a line, which only its user may read.
class History {
 public:
  static constexpr std::size_t kMost = 1000;

  /// Reads the file, and keeps what is added in it from now on; empty: in none. DataError when it or its folder cannot
  /// be read or made. Lines that are no JSON strings are passed over.
  void open(const std::string& path);

  const std::vector<std::string>& entries() const { return entries_; }
  /// Not what is empty or equals the last one. Others may add to the file at the same time. DataError when it cannot be
  /// written: once, and it is left alone from then on.
  void add(const std::string& entry);

 private:
  std::string path_;
  std::vector<std::string> entries_;
};

}  // namespace tessera::terminal
