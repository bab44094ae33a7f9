#pragma once
// "key=value,key=value": what --optim_args holds.
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace tessera::optim {

/// The numbers that an argument takes, both ends among them, and what messages call them.
struct Range {
  const char* words;
  double least, most;
};
inline constexpr double kLargest = std::numeric_limits<double>::max(), kLeast = std::numeric_limits<double>::min();
inline constexpr Range kAny{"a finite number", -kLargest, kLargest},
    kNotNegative{"a number of at least 0", 0, kLargest}, kPositive{"a number above 0", kLeast, kLargest},
    kNotPositive{"a number of at most 0", -kLargest, 0}, kAtLeastOne{"a number of at least 1", 1, kLargest},
    kPart{"a number in [0, 1]", 0, 1},
    kBelowOne{"a number in [0, 1)", 0, 1 - std::numeric_limits<double>::epsilon() / 2};

class OptimArgs {
 public:
  /// ConfigError for text that is not of this form. `optimizer` is named in messages.
  OptimArgs(const std::string& text, std::string optimizer);

  /// Each assigns when the key was given, and remembers the key as known.
  void take(const char* key, double* target, const Range& range);
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
