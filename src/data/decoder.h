#pragma once
// The libraries that decompress, behind one interface.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::data {

/// What is still to be read, and where there is room to write; decode() moves both on.
struct DecoderSpans {
  const std::uint8_t* in = nullptr;
  std::size_t in_bytes = 0;
  std::uint8_t* out = nullptr;
  std::size_t out_bytes = 0;
};

/// Of one compressed stream after the other.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// True at the end of a stream; what follows it in `spans` is the next one's. DataError: why the bytes are no such
  /// stream, without the file's name.
  virtual bool decode(DecoderSpans& spans) = 0;
};

/// By the ending of a file's name: ".gz", ".bz2", ".xz", ".zst", ".lz4".
bool has_decoder(const std::string& ending);
std::unique_ptr<Decoder> make_decoder(const std::string& ending);

}  // namespace tessera::data
