#include "data/unpack.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/log.h"
#include "data/cache_key.h"
#include "data/cache_lock.h"
#include "data/decoder.h"
#include "data/fingerprint.h"
#include "io/input_file.h"
#include "io/output_file.h"
#include "tessera/base/error.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

/// Streams that were joined are read as one, with zeros between them or at the end, which some programs pad with.
class PackedFile {
 public:
  explicit PackedFile(const std::string& path)
      : file_(path), ending_(fs::path(path).extension().string()), decoder_(make_decoder(ending_)) {}

  void write_to(const std::string& path) {
    io::OutputFile output(path);
    std::uint64_t written = 0;
    while (!is_at_end()) {
      const std::size_t bytes = decode();
      if (bytes > 0) output.write(written, out_.data(), bytes);
      written += bytes;
    }
    output.commit();
  }

 private:
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

  /// Fills the buffer when all of it was read.
  bool is_at_end() {
    for (;;) {
      if (spans_.in_bytes == 0 && offset_ < file_.size_bytes()) {
        spans_.in_bytes = std::min<std::uint64_t>(kChunkBytes, file_.size_bytes() - offset_);
        file_.read(offset_, in_.data(), spans_.in_bytes);
        offset_ += spans_.in_bytes;
        spans_.in = in_.data();
      }
      const bool is_padding = is_between_ && offset_ > spans_.in_bytes && spans_.in_bytes > 0 && *spans_.in == 0;
      if (!is_padding) return is_between_ && spans_.in_bytes == 0 && offset_ > 0;
      ++spans_.in;
      --spans_.in_bytes;
    }
  }

  /// Returns how many bytes lie in out_.
  std::size_t decode() {
    const bool is_last = spans_.in_bytes == 0;
    spans_.out = out_.data();
    spans_.out_bytes = out_.size();
    try {
      is_between_ = decoder_->decode(spans_);
    } catch (const DataError& e) {
      fail(fmt::format("damaged, or not in this format ({})", e.what()));
    }
    const std::size_t bytes = out_.size() - spans_.out_bytes;
    if (is_last && bytes == 0 && !is_between_) fail("cut short");
    return bytes;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(fmt::format("{}: the {} file is {}; get it again, or unpack it by hand to see what is wrong",
                                file_.path(), ending_, what),
                    file_.path());
  }

  io::InputFile file_;
  std::string ending_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<std::uint8_t> in_ = std::vector<std::uint8_t>(kChunkBytes),
                            out_ = std::vector<std::uint8_t>(4 * kChunkBytes);
  DecoderSpans spans_;
  std::uint64_t offset_ = 0;  // of what was read last, its end
  bool is_between_ = false;   // two streams
};

}  // namespace

std::string without_packing(const std::string& file) {
  const std::string ending = fs::path(file).extension().string();
  return has_decoder(ending) ? file.substr(0, file.size() - ending.size()) : file;
}

void unpack(const std::string& file, const std::string& path) {
  PackedFile(file).write_to(path);
}

std::string unpacked(const std::string& file) {
  const std::string name = without_packing(file);
  if (name == file) return file;
  Fingerprint key;
  key.add_file(file);
  const std::string path = cache_file("", fmt::format("unpacked-{}{}", key.hex(), fs::path(name).extension().string()));
  const CacheLock lock(path);
  if (!fs::exists(path)) {
    log_info(fmt::format("unpacking {} into {}", file, path));
    unpack(file, path);
  }
  return path;
}

}  // namespace tessera::data
