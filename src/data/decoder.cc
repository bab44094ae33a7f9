#include "data/decoder.h"

#include <bzlib.h>
#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <lz4frame.h>
#include <lzma.h>
#include <zstd.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

/// For libraries that count in 32 bits.
unsigned clamped(std::size_t bytes) {
  return static_cast<unsigned>(std::min<std::size_t>(bytes, std::numeric_limits<unsigned>::max()));
}

void advance(DecoderSpans& spans, std::size_t read, std::size_t written) {
  spans.in += read;
  spans.in_bytes -= read;
  spans.out += written;
  spans.out_bytes -= written;
}

/// RFC 1952, by ISA-L.
class GzipDecoder : public Decoder {
 public:
  GzipDecoder() { restart(); }
  bool decode(DecoderSpans& spans) override {
    const unsigned in = clamped(spans.in_bytes), out = clamped(spans.out_bytes);
    state_->next_in = const_cast<std::uint8_t*>(spans.in);
    state_->avail_in = in;
    state_->next_out = spans.out;
    state_->avail_out = out;
    const int result = isal_inflate(state_.get());
    advance(spans, in - state_->avail_in, out - state_->avail_out);
    if (result == ISAL_INCORRECT_CHECKSUM) throw DataError("its checksum differs");
    if (result < 0) throw DataError(fmt::format("ISA-L's error {}", result));
    if (state_->block_state != ISAL_BLOCK_FINISH) return false;
    restart();
    return true;
  }

 private:
  void restart() {
    isal_inflate_init(state_.get());
    state_->crc_flag = ISAL_GZIP;
  }
  std::unique_ptr<inflate_state> state_ = std::make_unique<inflate_state>();
};

class Bzip2Decoder : public Decoder {
 public:
  Bzip2Decoder() { begin(); }
  ~Bzip2Decoder() override { BZ2_bzDecompressEnd(&stream_); }
  bool decode(DecoderSpans& spans) override {
    const unsigned in = clamped(spans.in_bytes), out = clamped(spans.out_bytes);
    stream_.next_in = const_cast<char*>(reinterpret_cast<const char*>(spans.in));
    stream_.avail_in = in;
    stream_.next_out = reinterpret_cast<char*>(spans.out);
    stream_.avail_out = out;
    const int result = BZ2_bzDecompress(&stream_);
    advance(spans, in - stream_.avail_in, out - stream_.avail_out);
    if (result == BZ_MEM_ERROR) throw std::bad_alloc();
    if (result < 0) throw DataError(fmt::format("libbz2's error {}", result));
    if (result != BZ_STREAM_END) return false;
    BZ2_bzDecompressEnd(&stream_);
    begin();
    return true;
  }

 private:
  void begin() {
    stream_ = {};
    if (BZ2_bzDecompressInit(&stream_, 0, 0) != BZ_OK) throw std::bad_alloc();
  }
  bz_stream stream_{};
};

class XzDecoder : public Decoder {
 public:
  XzDecoder() { begin(); }
  ~XzDecoder() override { lzma_end(&stream_); }
  bool decode(DecoderSpans& spans) override {
    stream_.next_in = spans.in;
    stream_.avail_in = spans.in_bytes;
    stream_.next_out = spans.out;
    stream_.avail_out = spans.out_bytes;
    const lzma_ret result = lzma_code(&stream_, LZMA_RUN);
    advance(spans, spans.in_bytes - stream_.avail_in, spans.out_bytes - stream_.avail_out);
    if (result == LZMA_MEM_ERROR) throw std::bad_alloc();
    if (result == LZMA_STREAM_END) begin();
    if (result != LZMA_OK && result != LZMA_STREAM_END && result != LZMA_BUF_ERROR)
      throw DataError(fmt::format("liblzma's error {}", static_cast<int>(result)));
    return result == LZMA_STREAM_END;
  }

 private:
  void begin() {
    constexpr std::uint64_t kMostMemory = std::uint64_t{4} << 30;
    if (lzma_stream_decoder(&stream_, kMostMemory, 0) != LZMA_OK) throw std::bad_alloc();
  }
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

class ZstdDecoder : public Decoder {
 public:
  ZstdDecoder() {
    if (stream_ == nullptr) throw std::bad_alloc();
    constexpr int kLongestWindow = 31;  // zstd --long=31; the library takes 27 unless told
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kLongestWindow);
  }
  bool decode(DecoderSpans& spans) override {
    ZSTD_inBuffer in{spans.in, spans.in_bytes, 0};
    ZSTD_outBuffer out{spans.out, spans.out_bytes, 0};
    const std::size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
    if (ZSTD_isError(left) != 0) throw DataError(ZSTD_getErrorName(left));
    advance(spans, in.pos, out.pos);
    return left == 0;
  }

 private:
  struct Free {
    void operator()(ZSTD_DCtx* stream) const { ZSTD_freeDCtx(stream); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> stream_{ZSTD_createDCtx()};
};

class Lz4Decoder : public Decoder {
 public:
  Lz4Decoder() {
    if (LZ4F_isError(LZ4F_createDecompressionContext(&stream_, LZ4F_VERSION)) != 0) throw std::bad_alloc();
  }
  ~Lz4Decoder() override { LZ4F_freeDecompressionContext(stream_); }
  bool decode(DecoderSpans& spans) override {
    std::size_t read = spans.in_bytes, written = spans.out_bytes;
    const std::size_t left = LZ4F_decompress(stream_, spans.out, &written, spans.in, &read, nullptr);
    if (LZ4F_isError(left) != 0) throw DataError(LZ4F_getErrorName(left));
    advance(spans, read, written);
    return left == 0;
  }

 private:
  LZ4F_dctx* stream_ = nullptr;
};

struct Kind {
  std::string_view ending;
  std::unique_ptr<Decoder> (*make)();
};

template <class Made>
std::unique_ptr<Decoder> make() {
  return std::make_unique<Made>();
}

constexpr Kind kKinds[] = {{".gz", make<GzipDecoder>},
                           {".bz2", make<Bzip2Decoder>},
                           {".xz", make<XzDecoder>},
                           {".zst", make<ZstdDecoder>},
                           {".lz4", make<Lz4Decoder>}};

const Kind* kind_of(const std::string& ending) {
  const auto* found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.ending == ending; });
  return found == std::end(kKinds) ? nullptr : found;
}

}  // namespace

bool has_decoder(const std::string& ending) {
  return kind_of(ending) != nullptr;
}

std::unique_ptr<Decoder> make_decoder(const std::string& ending) {
  const Kind* kind = kind_of(ending);
  TESSERA_CHECK(kind != nullptr, "no decoder for " + ending);
  return kind->make();
}

}  // namespace tessera::data
