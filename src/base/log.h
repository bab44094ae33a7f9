#pragma once
// The log: one line per message on stderr, "tessera: ...", "tessera warning: ..." or "tessera error: ...". Thread-safe.
// Libraries return warnings and throw errors; the launcher logs. TESSERA_LOG_LEVEL says what is left out.
#include <string_view>

namespace tessera {

void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

}  // namespace tessera
