#pragma once
// Names of folders that users give and that runs make.
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace tessera {

/// "out" of "out/".
inline std::string without_end_slashes(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

inline constexpr std::string_view kCheckpointPrefix = "checkpoint-";

/// N of "checkpoint-N"; -1 of other names.
inline std::int64_t checkpoint_step(std::string_view name, std::string_view prefix = kCheckpointPrefix) {
  if (!name.starts_with(prefix)) return -1;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, code] = std::from_chars(name.data() + prefix.size(), end, step);
  return code == std::errc() && stop == end ? step : -1;
}

}  // namespace tessera
