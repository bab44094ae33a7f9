#include "base/secret.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <system_error>

#include "base/env.h"
#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t kShortestSecret = 16;

}  // namespace

Mac hmac_sha256(std::string_view key, std::string_view message) {
  Mac mac{};
  const char* bytes = key.empty() ? "" : key.data();  // no pointer would mean the last key
  const auto* made =
      ::HMAC(::EVP_sha256(), bytes, static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), mac.data(), nullptr);
  TESSERA_CHECK(made != nullptr, "HMAC-SHA256 is always there");
  return mac;
}

bool equal(const Mac& a, const Mac& b) {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Nonce new_nonce() {
  Nonce nonce{};
  if (::getentropy(nonce.data(), nonce.size()) != 0) {
    throw std::system_error(errno, std::generic_category(), "random numbers");
  }
  return nonce;
}

std::string to_hex(std::span<const std::uint8_t> bytes) {
  std::string text;
  for (const std::uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string job_secret() {
  std::string secret = environment("TESSERA_SECRET").value_or("");
  if (!secret.empty() && secret.size() < kShortestSecret) {
    throw ConfigError(fmt::format("TESSERA_SECRET must have at least {} characters, it has {}: give all ranks the same "
                                  "random one, for example of 'openssl rand -hex 32'",
                                  kShortestSecret, secret.size()),
                      "TESSERA_SECRET");
  }
  return secret;
}

}  // namespace tessera
