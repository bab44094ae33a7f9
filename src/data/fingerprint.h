#pragma once
// A name for what a computation started from: equal inputs, equal names.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::data {

/// Two 64-bit FNV-1a hashes with different starts. Fields are length-prefixed, so that they cannot run together.
class Fingerprint {
 public:
  void add(std::string_view field);
  void add(std::int64_t number) { add(std::string_view(reinterpret_cast<const char*>(&number), sizeof(number))); }
  /// Name, size and time of last change.
  void add_file(const std::string& path);
  /// 32 hexadecimal digits.
  std::string hex() const;

 private:
  void mix(const char* data, std::size_t size);
  std::uint64_t first_ = 14695981039346656037ULL, second_ = 0x9e3779b97f4a7c15ULL;
};

}  // namespace tessera::data
