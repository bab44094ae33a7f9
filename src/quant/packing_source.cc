// Dense matrices that are packed while they are read.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "io/tensor_table.h"
#include "quant/block_codes.h"
#include "quant/int8_codec.h"
#include "quant/packed_source.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

constexpr std::int64_t kPiece = 1 << 20;  // elements that are read at a time; whole blocks, or whole rows

struct Statistics {
  std::vector<float> absmax;  // of all blocks, or rows
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
    const std::lock_guard lock(mutex_);
    const auto& s = statistics(field->second.matrix, matrix);
    const void* from = s.absmax.data();
    if (field->second.leaf == "nested_offset") from = &s.offset;
    if (field->second.leaf == "nested_absmax") from = s.nested_absmax.data();
    if (field->second.leaf == "absmax" && !s.codes.empty()) from = s.codes.data();
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

  /// body(values, begin, count) over elements [begin, end) of the matrix of codes, in pieces of whole units.
  template <class Body>
  void for_pieces(const Matrix& m, std::int64_t begin, std::int64_t end, std::int64_t unit, const Body& body) const {
    if (m.packing.transposed) {
      auto whole = at::empty({m.numel()}, m.packing.rounded);
      dense_->read(m.name, 0, whole);
      whole = whole.view({m.columns, m.rows}).t().to(at::kFloat).contiguous();
      return body(whole.const_data_ptr<float>() + begin, begin, end - begin);
    }
    const auto size = std::max(unit, kPiece / unit * unit);
    const auto piece = at::empty({std::min(size, end - begin)}, m.packing.rounded);
    for (auto at = begin; at < end; at += size) {
      const auto stored = piece.narrow(0, 0, std::min(size, end - at));
      dense_->read(m.name, at, stored);
      const auto values = stored.to(at::kFloat);
      body(values.const_data_ptr<float>(), at, values.numel());
    }
  }

  void read_codes(const Matrix& m, std::int64_t begin, std::int64_t bytes, std::uint8_t* out) const {
    if (!m.four_bit()) return read_int8_codes(m, begin, bytes, reinterpret_cast<std::int8_t*>(out));
    const auto& s = *m.four_bit();
    TESSERA_CHECK(begin % (s.block / 2) == 0, "codes are read from the beginning of a block");
    std::vector<float> absmax;
    for_pieces(m, 2 * begin, std::min(m.numel(), 2 * (begin + bytes)), s.block,
               [&](const float* values, std::int64_t at, std::int64_t count) {
                 absmax.resize(static_cast<std::size_t>(blocks_of(count, s.block)));
                 four_bit_absmax(values, count, s.block, absmax.data());
                 encode_four_bit(s.type, values, count, s.block, absmax.data(), out + at / 2 - begin);
               });
  }

  void read_int8_codes(const Matrix& m, std::int64_t begin, std::int64_t bytes, std::int8_t* out) const {
    const auto end = begin + bytes, columns = m.columns;
    std::vector<float> scales;
    std::vector<std::int8_t> codes;
    for_pieces(m, begin / columns * columns, (end + columns - 1) / columns * columns, columns,
               [&](const float* values, std::int64_t at, std::int64_t count) {
                 scales.resize(static_cast<std::size_t>(count / columns));
                 codes.resize(static_cast<std::size_t>(count));
                 int8_scales(values, count / columns, columns, scales.data());
                 encode_int8(values, count / columns, columns, scales.data(), codes.data());
                 const auto first = std::max(begin, at), last = std::min(end, at + count);
                 std::copy_n(codes.data() + (first - at), last - first, out + (first - begin));
               });
  }

  /// Of the matrix that was asked for last.
  const Statistics& statistics(const std::string& name, const Matrix& m) const {
    if (name == last_) return statistics_;
    last_.clear();
    statistics_ = {};
    auto& absmax = statistics_.absmax;
    if (!m.four_bit()) {
      absmax.resize(static_cast<std::size_t>(m.rows));
      for_pieces(m, 0, m.numel(), m.columns, [&](const float* values, std::int64_t at, std::int64_t count) {
        int8_scales(values, count / m.columns, m.columns, absmax.data() + at / m.columns);
      });
      last_ = name;
      return statistics_;
    }
    const auto& s = *m.four_bit();
    absmax.resize(static_cast<std::size_t>(blocks_of(m.numel(), s.block)));
    for_pieces(m, 0, m.numel(), s.block, [&](const float* values, std::int64_t at, std::int64_t count) {
      four_bit_absmax(values, count, s.block, absmax.data() + at / s.block);
    });
    if (s.nested) {
      const auto count = static_cast<std::int64_t>(absmax.size());
      statistics_.offset = mean_of(absmax.data(), count);
      statistics_.nested_absmax.resize(static_cast<std::size_t>(blocks_of(count, s.nested_block)));
      statistics_.codes.resize(absmax.size());
      encode_absmax(s, absmax.data(), count, statistics_.offset, statistics_.nested_absmax.data(),
                    statistics_.codes.data());
    }
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
