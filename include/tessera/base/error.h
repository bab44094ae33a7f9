#pragma once
// Errors. A message says what was expected, what was found, where, and what to do. A library never prints and never
// exits.
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tessera {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A flag, a key of a config file, or a combination of them. `key` is empty when no single key is at fault.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message, std::string key = {}) : Error(message), key(std::move(key)) {}
  std::string key;
};

/// Throws ConfigError(message, key) unless `condition`.
inline void require_option(bool condition, const std::string& message, const std::string& key) {
  if (!condition) throw ConfigError(message, key);
}

/// A data, weight or tokenizer file. `line` is 1-based, 0 where the file has no lines.
class DataError : public Error {
 public:
  explicit DataError(const std::string& message, std::string file = {}, std::int64_t line = 0)
      : Error(message), file(std::move(file)), line(line) {}
  std::string file;
  std::int64_t line = 0;
};

class CheckpointError : public Error {
 public:
  explicit CheckpointError(const std::string& message, std::string path = {}) : Error(message), path(std::move(path)) {}
  std::string path;
};

/// A collective that could not complete: `rank` is the peer at fault (-1 unknown), `sequence` counts the group's
/// operations.
class CommError : public Error {
 public:
  CommError(const std::string& message, int rank, std::string operation, std::int64_t sequence)
      : Error(message), rank(rank), operation(std::move(operation)), sequence(sequence) {}
  int rank = -1;
  std::string operation;
  std::int64_t sequence = 0;
};

/// A promise between pieces of this program is broken: a defect here, not the user's.
class InternalError : public Error {
 public:
  using Error::Error;
};

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}

}  // namespace tessera

// Replaces assert(): NDEBUG is part of libtorch's ABI and therefore always defined. Throws InternalError.
#define TESSERA_CHECK(condition, message)                                         \
  do {                                                                            \
    if (!(condition)) [[unlikely]]                                                \
      ::tessera::detail::check_failed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
