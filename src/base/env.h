#pragma once
// Every environment variable that tessera reads, in one list: `tessera env` prints it.
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct EnvironmentVariable {
  const char* name;
  const char* meaning;
  bool is_secret = false;  // its value is not shown
};

const std::vector<EnvironmentVariable>& environment_variables();

/// The value, or nothing where it is unset or empty. InternalError for a name that the list above lacks.
std::optional<std::string> environment(const std::string& name);

/// With ~ and $NAME or ${NAME} as a shell reads them; names that are not set stay.
std::string expanded_path(const std::string& path);

/// Hugging Face's folder: HF_HOME, else huggingface in XDG_CACHE_HOME or in ~/.cache.
std::string huggingface_home();

}  // namespace tessera
