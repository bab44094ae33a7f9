#include "hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <vector>

#include "base/open_file.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

constexpr std::size_t kSha1Digits = 40, kSha256Digits = 64;

bool is_hexadecimal(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string digits_of(EVP_MD_CTX* context) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context, bytes, &size);
  std::string out;
  for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

}  // namespace

void Digest::Free::operator()(void* context) const {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
}

Digest::Digest(const std::string& etag, std::int64_t size_bytes) : etag_(etag) {
  const bool is_git = etag.size() == kSha1Digits;
  if (!is_hexadecimal(etag) || (!is_git && etag.size() != kSha256Digits)) return;
  context_.reset(EVP_MD_CTX_new());
  const int made =
      EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_.get()), is_git ? EVP_sha1() : EVP_sha256(), nullptr);
  TESSERA_CHECK(made == 1, "SHA-1 and SHA-256 are always there");
  if (is_git) {
    const std::string head = fmt::format("blob {}", size_bytes);
    update({head.c_str(), head.size() + 1});  // with the zero
  }
}

void Digest::update(std::string_view bytes) {
  if (context_) EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size());
}

std::string Digest::disagreement() {
  if (!context_) return {};
  const std::string digits = digits_of(static_cast<EVP_MD_CTX*>(context_.get()));
  if (digits == etag_) return {};
  return fmt::format("{} {}, expected {}", etag_.size() == kSha1Digits ? "git's SHA-1" : "SHA-256", digits, etag_);
}

std::string sha256_of(const std::string& file) {
  const OpenFile open(file);
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  std::vector<char> piece(1 << 20);
  for (std::int64_t at = 0;;) {
    const ssize_t n = ::pread(open.descriptor(), piece.data(), piece.size(), at);
    if (n < 0) throw DataError(fmt::format("cannot read '{}'", file), file);
    if (n == 0) return digits_of(context.get());
    EVP_DigestUpdate(context.get(), piece.data(), static_cast<std::size_t>(n));
    at += n;
  }
}

}  // namespace tessera::hub
