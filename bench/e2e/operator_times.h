#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace tessera::bench {

/// Milliseconds of the processor that operators and backward nodes took on all threads, each without those it called,
/// while this lives.
class OperatorTimes {
 public:
  OperatorTimes();
  ~OperatorTimes();
  OperatorTimes(const OperatorTimes&) = delete;
  OperatorTimes& operator=(const OperatorTimes&) = delete;
  /// By name, those above 0.05 ms; names ending in "Backward" are the nodes' own work.
  std::map<std::string, double> milliseconds() const;

 private:
  std::uint64_t handle_;
};

}  // namespace tessera::bench
