// Dense matrices that are packed while they are read.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "io/tensor_table.h"
#include "quant/block_codes.h"
#include "quant/int8_codec.h"
#include "quant/packed_source.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

constexpr std::int64_t kPiece = 1 << 17;  // elements that a thread reads at a time; whole blocks, or whole rows

/// Of a matrix with double quantisation.
struct Statistics {
  std::vector<float> absmax;  // of all blocks
  float offset = 0;
  std::vector<float> nested_absmax;
  std::vector<std::uint8_t> codes;  // of absmax
};

class PackingSource final : public PackedSource {
 public:
  PackingSource(std::shared_ptr<const io::TensorSource> dense, std::map<std::string, MatrixPacking> packings)
      : dense_(std::move(dense)) {
    for (const auto& info : dense_->tensors()) {
      const auto packing = packings.find(info.name);
      if (packing == packings.end()) {
        table_.add(info);
      } else {
        add(info, packing->second);
      }
    }
    table_.sort();
  }

  std::shared_ptr<const tensor::Codec> codec(const std::string& name) const override {
    const auto found = matrices_.find(name);
    return found == matrices_.end() ? nullptr : found->second.codec;
  }
  const std::vector<io::TensorInfo>& tensors() const override { return table_.all(); }
  const io::TensorInfo* find(const std::string& name) const override { return table_.find(name); }
  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    TESSERA_CHECK(!codec(name) && !fields_.contains(name), "'" + name + "' is packed while it is read");
    dense_->read(name, begin, std::move(out));
  }
  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto field = fields_.find(name);
    if (field == fields_.end()) return dense_->read_bytes(name, begin, std::move(out));
    const auto& matrix = matrices_.at(field->second.matrix);
    auto* to = static_cast<std::byte*>(out.mutable_data_ptr());
    if (field->second.leaf.empty()) return read_codes(matrix, begin, out.numel(), reinterpret_cast<std::uint8_t*>(to));
    if (!matrix.is_nested()) return read_scales(matrix, begin, out.numel(), reinterpret_cast<float*>(to));
    const std::lock_guard lock(mutex_);
    const auto& s = statistics(field->second.matrix, matrix);
    const void* from = s.codes.data();
    if (field->second.leaf == "nested_offset") from = &s.offset;
    if (field->second.leaf == "nested_absmax") from = s.nested_absmax.data();
    std::memcpy(to, static_cast<const std::byte*>(from) + begin, static_cast<std::size_t>(out.numel()));
  }
  std::optional<io::MappedTensor> map(const std::string& name) const override {
    return fields_.contains(name) ? std::nullopt : dense_->map(name);
  }
  std::optional<io::MappedTensor> map_bytes(const std::string& name) const override {
    return fields_.contains(name) ? std::nullopt : dense_->map_bytes(name);
  }

 private:
  struct Matrix {
    std::string name;
    MatrixPacking packing;
    std::shared_ptr<const tensor::Codec> codec;
    std::int64_t rows = 0, columns = 0;  // of the codes
    std::int64_t numel() const { return rows * columns; }
    /// Null: LLM.int8().
    const FourBitSettings* four_bit() const { return std::get_if<FourBitSettings>(&packing.form); }
    bool is_nested() const { return four_bit() != nullptr && four_bit()->nested; }
    /// Elements that share a scale.
    std::int64_t unit() const { return four_bit() != nullptr ? four_bit()->block : columns; }
  };
  struct Field {
    std::string matrix, leaf;
  };

  void add(const io::TensorInfo& info, const MatrixPacking& packing) {
    TESSERA_CHECK(info.shape.size() == 2, "'" + info.name + "' is no matrix");
    if (!at::isFloatingType(info.dtype))
      throw DataError(fmt::format("{}: tensor '{}' is {}, which cannot be packed; is it packed already?", info.file,
                                  info.name, c10::toString(info.dtype)),
                      info.file);
    Matrix m{info.name, packing, nullptr, info.shape[0], info.shape[1]};
    if (packing.transposed) std::swap(m.rows, m.columns);
    m.codec = codec_of(packing.form, m.columns);
    for (const auto& field : m.codec->fields(m.rows, m.columns)) {
      const auto name = field.full_name(info.name);
      fields_[name] = {info.name, field.name};
      io::TensorInfo shown{name, field.dtype, field.shape, info.file};
      if (field.is_codes()) shown = {name, info.dtype, {m.rows, m.columns}, info.file, shown.nbytes()};
      table_.add(std::move(shown));
    }
    matrices_.emplace(info.name, std::move(m));
  }

  /// body(values, begin, count) over elements [begin, end) of the matrix of codes, in pieces of whole units: several
  /// threads at a time.
  template <class Body>
  void for_pieces(const Matrix& m, std::int64_t begin, std::int64_t end, const Body& body) const {
    at::Tensor whole;
    if (m.packing.transposed) {
      whole = at::empty({m.numel()}, m.packing.rounded);
      dense_->read(m.name, 0, whole);
      whole = whole.view({m.columns, m.rows}).t().to(at::kFloat).contiguous();
    }
    const auto size = std::max(m.unit(), kPiece / m.unit() * m.unit());
    at::parallel_for(0, (end - begin + size - 1) / size, 1, [&](std::int64_t first, std::int64_t last) {
      const at::NoGradGuard no_grad;
      const auto from = begin + first * size, to = std::min(end, begin + last * size);
      const auto values = whole.defined() ? whole.view(-1).narrow(0, from, to - from)
                                          : at::empty({std::min(size, to - from)}, at::kFloat);
      const bool as_stored = whole.defined() || m.packing.rounded == at::kFloat;
      const auto rounded = as_stored ? values : at::empty(values.sizes(), m.packing.rounded);
      for (auto at = from; at < to; at += size) {
        const auto count = std::min(size, to - at);
        if (whole.defined()) {
          body(values.template const_data_ptr<float>() + (at - from), at, count);
          continue;
        }
        dense_->read(m.name, at, rounded.narrow(0, 0, count));
        if (!as_stored) values.narrow(0, 0, count).copy_(rounded.narrow(0, 0, count));
        body(values.template const_data_ptr<float>(), at, count);
      }
    });
  }

  void read_codes(const Matrix& m, std::int64_t begin, std::int64_t bytes, std::uint8_t* out) const {
    if (!m.four_bit()) return read_int8_codes(m, begin, bytes, reinterpret_cast<std::int8_t*>(out));
    const auto& s = *m.four_bit();
    TESSERA_CHECK(begin % (s.block / 2) == 0, "codes are read from the beginning of a block");
    for_pieces(m, 2 * begin, std::min(m.numel(), 2 * (begin + bytes)),
               [&](const float* values, std::int64_t at, std::int64_t count) {
                 std::vector<float> absmax(static_cast<std::size_t>(blocks_of(count, s.block)));
                 four_bit_absmax(values, count, s.block, absmax.data());
                 check_finite(m, absmax.data(), static_cast<std::int64_t>(absmax.size()));
                 encode_four_bit(s.type, values, count, s.block, absmax.data(), out + at / 2 - begin);
               });
  }

  void read_int8_codes(const Matrix& m, std::int64_t begin, std::int64_t bytes, std::int8_t* out) const {
    const auto end = begin + bytes, columns = m.columns;
    for_pieces(m, begin / columns * columns, (end + columns - 1) / columns * columns,
               [&](const float* values, std::int64_t at, std::int64_t count) {
                 std::vector<std::int8_t> codes(static_cast<std::size_t>(columns));
                 for (auto row = at; row < at + count; row += columns, values += columns) {
                   const auto first = std::max(begin, row), last = std::min(end, row + columns);
                   float scale = 0;
                   int8_scales(values, 1, columns, &scale);
                   check_finite(m, &scale, 1);
                   encode_int8(values, 1, columns, &scale, codes.data());
                   std::copy_n(codes.data() + (first - row), last - first, out + (first - begin));
                 }
               });
  }

  /// Scales of NaN and of infinities, for which there are no codes.
  void check_finite(const Matrix& m, const float* scales, std::int64_t count) const {
    if (std::all_of(scales, scales + count, [](float scale) { return std::isfinite(scale); })) return;
    const auto& file = find(m.name)->file;
    throw DataError(fmt::format("{}: tensor '{}': holds NaN or infinities, for which {} has no codes; expected finite "
                                "values. Is this the model that was trained, and does its dtype hold its values?",
                                file, m.name, m.codec->name()),
                    file);
  }

  /// absmax of blocks, or scales of rows; `begin` and `bytes` among theirs.
  void read_scales(const Matrix& m, std::int64_t begin, std::int64_t bytes, float* out) const {
    constexpr std::int64_t kSize = sizeof(float);
    TESSERA_CHECK(begin % kSize == 0 && bytes % kSize == 0, "scales are read whole");
    const auto first = begin / kSize, end = first + bytes / kSize, unit = m.unit();
    for_pieces(m, first * unit, std::min(m.numel(), end * unit),
               [&](const float* values, std::int64_t at, std::int64_t count) {
                 auto* to = out + (at / unit - first);
                 if (m.four_bit())
                   four_bit_absmax(values, count, unit, to);
                 else
                   int8_scales(values, count / unit, unit, to);
                 check_finite(m, to, blocks_of(count, unit));
               });
  }

  /// Of the matrix that was asked for last.
  const Statistics& statistics(const std::string& name, const Matrix& m) const {
    if (name == last_) return statistics_;
    last_.clear();
    const auto& s = *m.four_bit();
    const auto count = blocks_of(m.numel(), s.block);
    statistics_ = {};
    auto& [absmax, offset, nested_absmax, codes] = statistics_;
    absmax.resize(static_cast<std::size_t>(count));
    read_scales(m, 0, count * static_cast<std::int64_t>(sizeof(float)), absmax.data());
    offset = mean_of(absmax.data(), count);
    nested_absmax.resize(static_cast<std::size_t>(blocks_of(count, s.nested_block)));
    codes.resize(absmax.size());
    encode_absmax(s, absmax.data(), count, offset, nested_absmax.data(), codes.data());
    last_ = name;
    return statistics_;
  }

  std::shared_ptr<const io::TensorSource> dense_;
  std::map<std::string, Matrix> matrices_;
  std::map<std::string, Field> fields_;  // by the names that are shown
  io::TensorTable table_;
  mutable std::mutex mutex_;
  mutable std::string last_;
  mutable Statistics statistics_;
};

}  // namespace

std::shared_ptr<const PackedSource> packing_source(std::shared_ptr<const io::TensorSource> dense,
                                                   std::map<std::string, MatrixPacking> packings) {
  return std::make_shared<PackingSource>(std::move(dense), std::move(packings));
}

}  // namespace tessera::quant
