#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "base/env.h"

namespace tessera {
namespace {

spdlog::level::level_enum wanted_level() {
  const auto name = environment("TESSERA_LOG_LEVEL");
  return name == "silent"    ? spdlog::level::off
         : name == "error"   ? spdlog::level::err
         : name == "warning" ? spdlog::level::warn
                             : spdlog::level::info;
}

/// Never freed: threads may log while the process ends.
spdlog::logger& stderr_logger() {
  static auto* logger = [] {
    auto* made = new spdlog::logger("tessera", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->set_level(wanted_level());
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *logger;
}

}  // namespace

void log_info(std::string_view message) {
  stderr_logger().info("tessera: {}", message);
}

void log_warning(std::string_view message) {
  stderr_logger().warn("tessera warning: {}", message);
}

void log_error(std::string_view message) {
  stderr_logger().error("tessera error: {}", message);
}

}  // namespace tessera
