#include "io/file_reads.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

#include "base/crc32c.h"
#include "tessera/base/error.h"

namespace tessera::io {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{128} << 10;  // stays in the cache; a multiple of every element's size

std::vector<Stretch> stretches_of(const std::vector<FileRead>& reads) {
  std::vector<Stretch> out;
  for (const auto& read : reads) out.push_back(read.from);
  return out;
}

/// Takes the pieces of one read, in their order.
class Destination {
 public:
  Destination(const FileRead& read, const at::Tensor& scratch)
      : out_(read.out), element_bytes_(c10::elementSize(read.stored)) {
    if (!out_.defined() || out_.scalar_type() != read.stored)
      scratch_ = scratch.narrow(0, 0, static_cast<std::int64_t>(kPieceBytes)).view(read.stored);
    TESSERA_CHECK(!out_.defined() || (out_.dim() == 1 && out_.is_contiguous() && out_.is_cpu() &&
                                      out_.numel() * static_cast<std::int64_t>(element_bytes_) ==
                                          static_cast<std::int64_t>(read.from.bytes)),
                  "out must be a 1-D contiguous CPU tensor of the read's size");
  }

  /// Where bytes from `done` on go.
  std::byte* at(std::uint64_t done) const {
    if (scratch_.defined()) return static_cast<std::byte*>(scratch_.mutable_data_ptr());
    return static_cast<std::byte*>(out_.mutable_data_ptr()) + done;
  }
  void filled(std::uint64_t done, std::size_t bytes) const {
    if (!scratch_.defined() || !out_.defined()) return;
    const auto begin = static_cast<std::int64_t>(done / element_bytes_);
    const auto count = static_cast<std::int64_t>(bytes / element_bytes_);
    out_.narrow(0, begin, count).copy_(scratch_.narrow(0, 0, count));
  }

 private:
  at::Tensor out_, scratch_;
  std::size_t element_bytes_;
};

}  // namespace

std::vector<std::uint32_t> read_files(const std::vector<FileRead>& reads, std::size_t sums) {
  std::vector<std::uint32_t> out(sums);
  ReadAhead ahead(stretches_of(reads));
  const at::Tensor scratch = at::empty({static_cast<std::int64_t>(kPieceBytes)}, at::TensorOptions().dtype(at::kByte));
  for (const auto& read : reads) {
    const Destination destination(read, scratch);
    for (std::uint64_t done = 0; done < read.from.bytes;) {
      const std::size_t count = std::min<std::uint64_t>(read.from.bytes - done, kPieceBytes);
      std::byte* to = destination.at(done);
      ahead.read(*read.from.file, read.from.offset + done, to, count);
      if (read.sum != FileRead::kNotSummed) {
        auto& sum = out.at(static_cast<std::size_t>(read.sum));
        sum = crc32c(to, count, sum);
      }
      destination.filled(done, count);
      done += count;
    }
  }
  return out;
}

}  // namespace tessera::io
