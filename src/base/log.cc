#include "base/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/nearest.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

const std::vector<std::string> kLevelNames = {"debug", "info", "warning", "error", "silent"};

LogLevel initial_level() {
  const char* name = std::getenv("TESSERA_LOG_LEVEL");
  for (std::size_t i = 0; name != nullptr && i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) return static_cast<LogLevel>(i);
  }
  return LogLevel::kInfo;
}

std::atomic<LogLevel>& level_variable() {
  static std::atomic<LogLevel> level{initial_level()};
  return level;
}

std::atomic<int> log_rank{0}, log_world{1};

/// Never freed: threads may log while the process ends.
spdlog::logger& stderr_logger() {
  static auto* logger = [] {
    auto* made = new spdlog::logger("tessera", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->set_level(spdlog::level::trace);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

}  // namespace

void set_log_level(LogLevel level) {
  level_variable() = level;
}
LogLevel log_level() {
  return level_variable();
}

LogLevel parse_log_level(std::string_view name) {
  for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
    if (kLevelNames[i] == name) return static_cast<LogLevel>(i);
  }
  throw ConfigError(fmt::format("log level '{}' is unknown{}; use one of {}", name, did_you_mean(name, kLevelNames),
                                fmt::join(kLevelNames, ", ")));
}

void set_log_rank(int rank, int world_size) {
  log_rank = rank;
  log_world = world_size;
}

void log(LogLevel level, std::string_view message) {
  if (level < log_level() || level == LogLevel::kSilent) return;
  const int rank = log_rank;
  if (rank != 0 && level < LogLevel::kWarning) return;
  const std::string prefix = log_world > 1 ? fmt::format("[rank {}] ", rank) : "";
  const std::string label = level == LogLevel::kInfo ? "" : " " + kLevelNames[static_cast<std::size_t>(level)];
  stderr_logger().log(spdlog::level::info, "{}tessera{}: {}", prefix, label, message);
}

}  // namespace tessera
