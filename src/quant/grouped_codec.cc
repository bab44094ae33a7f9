#include "quant/grouped_codec.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

constexpr std::size_t kWords = 0, kZeroWords = 1, kGroupScales = 2, kGroupOfInput = 3;  // places among the fields
/// Where in its word AWQ puts each of eight neighbours.
constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

class GroupedCodec final : public tensor::Codec {
 public:
  explicit GroupedCodec(const GroupedSettings& s) : s_(s), per_word_(32 / s.bits), mask_((1u << s.bits) - 1) {}

  std::string name() const override {
    auto text = fmt::format("{}, {} bits, groups of {}", is_gptq() ? "gptq" : "awq", s_.bits, s_.group_size);
    if (s_.listed) text += ", in the order of activations";
    return is_gptq() && !s_.zeros_less_one ? text + ", zero points as they are" : text;
  }
  std::int64_t block_numel() const override { return per_word_; }

  std::vector<tensor::PackedField> fields(std::int64_t rows, std::int64_t columns) const override {
    std::vector<std::int64_t> codes{columns / per_word_, rows};
    if (!is_gptq()) codes = {columns, rows / per_word_};
    std::vector<tensor::PackedField> out = {
        {"", at::kInt, codes, 4},
        {"qzeros", at::kInt, {s_.groups, rows / per_word_}, 4},
        {"scales", s_.scales, {s_.groups, rows}, static_cast<std::int64_t>(c10::elementSize(s_.scales))}};
    if (s_.listed) out.push_back({"g_idx", at::kInt, {columns}, 4});
    return out;
  }

  void encode(const float*, std::int64_t, const std::vector<std::byte*>&) const override {
    throw Error(name() + ": weights of this form are read, not made");
  }

  void decode(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, float* out,
              std::int64_t stride) const override {
    const auto groups = groups_of(matrix, tile);
    const auto rows = static_cast<std::size_t>(tile.rows);
    std::vector<float> scales(rows), zeros(rows);
    std::int64_t group = -1;
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      if (groups[static_cast<std::size_t>(c)] != group) {
        group = groups[static_cast<std::size_t>(c)];
        read_group(matrix, group, tile.row, scales, zeros);
      }
      for (std::size_t r = 0; r < rows; ++r) {
        const auto row = tile.row + static_cast<std::int64_t>(r);
        const auto code = static_cast<float>(code_at(matrix, row, tile.column + c));
        out[static_cast<std::int64_t>(r) * stride + c] = scales[r] * (code - zeros[r]);
      }
    }
  }

 private:
  bool is_gptq() const { return s_.layout == WordLayout::kGptq; }

  std::uint32_t part(std::int32_t word, std::int64_t place) const {
    return static_cast<std::uint32_t>(word) >> (s_.bits * static_cast<int>(place)) & mask_;
  }
  /// Of neighbours in a word: outputs, but GPTQ's codes.
  std::int64_t place_of(std::int64_t index) const {
    return is_gptq() ? index % per_word_ : kAwqPlace[static_cast<std::size_t>(index % per_word_)];
  }

  std::uint32_t code_at(const tensor::PackedMatrix& m, std::int64_t row, std::int64_t column) const {
    const auto* words = m.fields[kWords].const_data_ptr<std::int32_t>();
    if (is_gptq()) return part(words[column / per_word_ * m.rows + row], column % per_word_);
    return part(words[column * (m.rows / per_word_) + row / per_word_], place_of(row));
  }

  /// Each column's group; groups that there are not: the last.
  std::vector<std::int64_t> groups_of(const tensor::PackedMatrix& m, const tensor::MatrixTile& tile) const {
    std::vector<std::int64_t> groups(static_cast<std::size_t>(tile.columns));
    const auto* listed = s_.listed ? m.fields[kGroupOfInput].const_data_ptr<std::int32_t>() : nullptr;
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      const auto column = tile.column + c;
      const std::int64_t group = listed ? listed[column] : column / s_.group_size;
      groups[static_cast<std::size_t>(c)] = std::clamp<std::int64_t>(group, 0, s_.groups - 1);
    }
    return groups;
  }

  void read_group(const tensor::PackedMatrix& m, std::int64_t group, std::int64_t row, std::vector<float>& scales,
                  std::vector<float>& zeros) const {
    const auto* words = m.fields[kZeroWords].const_data_ptr<std::int32_t>() + group * (m.rows / per_word_);
    const auto& table = m.fields[kGroupScales];
    for (std::size_t r = 0; r < scales.size(); ++r, ++row) {
      auto zero = part(words[row / per_word_], place_of(row));
      if (is_gptq() && s_.zeros_less_one) zero = (zero + 1) & mask_;
      zeros[r] = static_cast<float>(zero);
      scales[r] = scale_at(table, group * m.rows + row);
    }
  }

  static float scale_at(const at::Tensor& table, std::int64_t i) {
    switch (table.scalar_type()) {
      case at::kHalf:
        return table.const_data_ptr<c10::Half>()[i];
      case at::kBFloat16:
        return table.const_data_ptr<c10::BFloat16>()[i];
      default:
        return table.const_data_ptr<float>()[i];
    }
  }

  GroupedSettings s_;
  std::int64_t per_word_;
  std::uint32_t mask_;
};

}  // namespace

std::shared_ptr<const tensor::Codec> grouped_codec(const GroupedSettings& settings) {
  const bool known =
      settings.bits == 4 || (settings.layout == WordLayout::kGptq && (settings.bits == 2 || settings.bits == 8));
  if (!known) throw ConfigError(fmt::format("codes of {} bits in words of 32 are not read", settings.bits), "bits");
  return std::make_shared<GroupedCodec>(settings);
}

}  // namespace tessera::quant
