#pragma once
// Who belongs to a job: a secret that all ranks have in their environment, and proofs of it (HMAC-SHA256), so that it
// is never sent. It keeps strangers from taking a rank's place. It does not hide or protect what is sent afterwards:
// networks between hosts must be trusted ones.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

using Mac = std::array<std::uint8_t, 32>;
using Nonce = std::array<std::uint8_t, 32>;

Mac hmac_sha256(std::string_view key, std::string_view message);
/// In a time that says nothing about where they differ.
bool equal(const Mac& a, const Mac& b);
/// Nobody can guess it.
Nonce new_nonce();

std::string to_hex(std::span<const std::uint8_t> bytes);
inline std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// TESSERA_SECRET. Empty where it is not set: then everybody who reaches the ports can prove it. ConfigError for one
/// that could be guessed.
std::string job_secret();

}  // namespace tessera
