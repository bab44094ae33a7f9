#pragma once
// The checksum that a file's etag is: SHA-256 of large files (64 digits), git's SHA-1 of small ones (40).
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::hub {

class Digest {
 public:
  /// Other etags are no checksums: everything agrees with them. `size_bytes`: of the whole file, which git's counts.
  Digest(const std::string& etag, std::int64_t size_bytes);
  void update(std::string_view bytes);
  /// Of all bytes, once: empty where they agree, else "SHA-256 2c26..., expected ba78...".
  std::string disagreement();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::string etag_;
  std::unique_ptr<void, Free> context_;  // null: no checksum
};

/// SHA-256 of a file, as 64 digits. DataError.
std::string sha256_of(const std::string& file);

}  // namespace tessera::hub
