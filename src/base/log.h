#pragma once
// The log: one line per message on stderr, "tessera warning: ..." or, in a world of several, "[rank 1] tessera warning:
// ...". Thread-safe. Libraries return warnings and throw errors; tasks and the launcher log.
#include <string>
#include <string_view>

namespace tessera {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kSilent };

/// Messages below `level` are dropped. Starts as kInfo, or what TESSERA_LOG_LEVEL names.
void set_log_level(LogLevel level);
LogLevel log_level();
/// "debug", "info", "warning", "error", "silent"; ConfigError for others.
LogLevel parse_log_level(std::string_view name);

/// Prefixes every message, and drops messages below kWarning on ranks other than 0 (all ranks would say the same).
void set_log_rank(int rank, int world_size);

void log(LogLevel level, std::string_view message);
inline void log_debug(std::string_view message) {
  log(LogLevel::kDebug, message);
}
inline void log_info(std::string_view message) {
  log(LogLevel::kInfo, message);
}
inline void log_warning(std::string_view message) {
  log(LogLevel::kWarning, message);
}
inline void log_error(std::string_view message) {
  log(LogLevel::kError, message);
}

}  // namespace tessera
