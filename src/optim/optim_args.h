#pragma once
// "key=value,key=value": what --optim_args holds.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::optim {

class OptimArgs {
 public:
  /// ConfigError for text that is not of this form. `optimizer` is named in messages.
  OptimArgs(const std::string& text, std::string optimizer);

  /// Each assigns when the key was given, and remembers the key as known.
  void take(const char* key, double* target);
  void take(const char* key, bool* target);
  void take(const char* key, std::int64_t* target);
  /// One of these words; the others are named in the message.
  void take(const char* key, std::string* target, const std::vector<std::string>& allowed);

  /// ConfigError for keys that nobody took, with the nearest that somebody would.
  void check_all_taken() const;

 private:
  const std::string* find(const char* key);
  [[noreturn]] void reject(const char* key, const char* expected, const std::string& found) const;
  std::string optimizer_;
  std::map<std::string, std::string> values_;
  std::map<std::string, bool> known_;
};

}  // namespace tessera::optim
