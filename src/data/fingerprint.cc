#include "data/fingerprint.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/open_file.h"

namespace tessera::data {

void Fingerprint::mix(const char* data, std::size_t size) {
  constexpr std::uint64_t kPrime = 1099511628211ULL;
  for (std::size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(data[i]);
    first_ = (first_ ^ byte) * kPrime;
    second_ = (second_ ^ (byte + 0x55U)) * kPrime;
  }
}

void Fingerprint::add(std::string_view field) {
  const std::uint64_t size = field.size();
  mix(reinterpret_cast<const char*>(&size), sizeof(size));
  mix(field.data(), field.size());
}

void Fingerprint::add_file(const std::string& path) {
  const OpenFile file(path);
  std::error_code code;
  add(std::filesystem::absolute(path).lexically_normal().string());
  add(static_cast<std::int64_t>(file.size_bytes()));
  add(static_cast<std::int64_t>(std::filesystem::last_write_time(path, code).time_since_epoch().count()));
}

std::string Fingerprint::hex() const {
  return fmt::format("{:016x}{:016x}", first_, second_);
}

}  // namespace tessera::data
