#include "quant/grouped_codec.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include "quant/code_kernels.h"
#include "quant/grouped_products.h"
#include "tensor/device_codec.h"
#include "tensor/panel_codec.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

constexpr std::size_t kWords = 0, kZeroWords = 1, kGroupScales = 2, kGroupOfInput = 3;  // places among the fields
/// Where in its word AWQ puts each of eight neighbours.
constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

float sum_of_floats(const std::uint32_t* words, std::int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += std::bit_cast<float>(words[i]);
  return sum;
}
float sum_of_pairs(const std::uint32_t* words, std::int64_t count) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i)
    sum += std::bit_cast<float>(words[i] << 16) + std::bit_cast<float>(words[i] & 0xFFFF0000U);
  return sum;
}

class GroupedCodec final : public tensor::Codec, public tensor::FewRowsCodec, public tensor::DeviceCodec {
 public:
  explicit GroupedCodec(const GroupedSettings& s) : s_(s), per_word_(32 / s.bits), mask_((1u << s.bits) - 1) {}

  std::string name() const override {
    auto text = fmt::format("{}, {} bits, groups of {}", is_gptq() ? "gptq" : "awq", s_.bits, s_.group_size);
    if (s_.listed) text += ", in the order of activations";
    return is_gptq() && !s_.zeros_less_one ? text + ", zero points as they are" : text;
  }
  std::int64_t block_numel() const override { return per_word_; }
  std::int64_t rows_together() const override { return 16; }

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
    const auto words = is_gptq() ? gptq_words(matrix, tile) : awq_words(matrix, tile);
    const auto skip = is_gptq() ? tile.column % per_word_ : 0;
    std::vector<float> scales(static_cast<std::size_t>(s_.groups)), zeros(scales.size()), codes;
    if (is_gptq() && words.columns * per_word_ != tile.columns)
      codes.resize(static_cast<std::size_t>(words.columns * per_word_));
    for (std::int64_t r = 0; r < tile.rows; ++r, out += stride) {
      const auto row = tile.row + r;
      if (!is_gptq()) {
        codes_at(words.of_row(row / per_word_ - tile.row / per_word_), words.columns, s_.bits * place_of(row), out);
      } else if (codes.empty()) {
        codes_of_words(words.of_row(r), words.columns, s_.bits, out);
      } else {
        codes_of_words(words.of_row(r), words.columns, s_.bits, codes.data());
        std::copy_n(codes.data() + skip, tile.columns, out);
      }
      read_scales(matrix, row, groups, scales, zeros);
      scale(groups, scales, zeros, out);
    }
  }

  at::Tensor few_rows_product(const tensor::PackedMatrix& m, const at::Tensor& x) const override {
    const bool has_words = m.rows % per_word_ == 0 && m.columns % per_word_ == 0;
    const bool ordered = !has_groups_of_words();
    if (!has_grouped_products() || s_.bits != 4 || !has_words || (ordered && !is_gptq())) return {};
    const auto groups = input_groups(m);
    const at::NoGradGuard no_grad;
    const bool pairs =
        !ordered && x.scalar_type() == at::kBFloat16 && has_grouped_pair_products() && s_.scales != at::kFloat;
    const auto by_input = by_inputs((pairs ? x : x.to(at::kFloat)).contiguous(), groups);
    const auto few = grouped_rows(x.size(0));
    const auto y = at::empty({few, m.rows}, at::kFloat);
    const GroupedProduct product{.layout = s_.layout,
                                 .zeros_less_one = is_gptq() && s_.zeros_less_one,
                                 .scale_dtype = scale_dtype(),
                                 .rows = m.rows,
                                 .columns = m.columns,
                                 .group_size = s_.group_size,
                                 .words = m.fields[kWords].const_data_ptr<std::int32_t>(),
                                 .zeros = m.fields[kZeroWords].const_data_ptr<std::int32_t>(),
                                 .scales = m.fields[kGroupScales].const_data_ptr(),
                                 .few = few,
                                 .x = by_input.words.data(),
                                 .x_sums = by_input.sums.data(),
                                 .order = ordered ? groups.order.data() : nullptr,
                                 .begins = groups.begins.data(),
                                 .groups = groups.count()};
    const auto multiply = pairs ? grouped_pair_product : grouped_product;
    constexpr std::int64_t kTogether = 16;  // outputs
    const auto parts = (m.rows + kTogether - 1) / kTogether;
    at::parallel_for(0, parts, kElementsOfThread / (kTogether * m.columns) + 1, [&](auto begin, auto end) {
      const auto first = begin * kTogether;
      multiply(product, first, std::min(end * kTogether, m.rows) - first, y.mutable_data_ptr<float>());
    });
    return y.narrow(0, 0, x.size(0));
  }

  at::Tensor decode_there(const tensor::PackedMatrix& matrix, at::ScalarType dtype) const override {
    const at::NoGradGuard no_grad;
    const auto& words = matrix.fields[kWords];
    auto zeros = codes_there(matrix.fields[kZeroWords], 1);
    if (is_gptq() && s_.zeros_less_one) zeros = zeros.add_(1).bitwise_and_(static_cast<std::int64_t>(mask_));
    zeros = zeros.to(at::kFloat);
    auto scales = matrix.fields[kGroupScales].to(at::kFloat);
    auto values = codes_there(words, is_gptq() ? 0 : 1).to(at::kFloat);  // [in, out]
    if (!s_.listed && matrix.columns == s_.groups * s_.group_size) {
      values = values.view({s_.groups, s_.group_size, matrix.rows});
      zeros = zeros.unsqueeze(1), scales = scales.unsqueeze(1);
    } else {
      const auto group = s_.listed ? matrix.fields[kGroupOfInput]
                                   : at::arange(matrix.columns, words.options()).floor_divide_(s_.group_size);
      const auto known = group.clamp(0, s_.groups - 1);
      zeros = zeros.index_select(0, known), scales = scales.index_select(0, known);
    }
    return values.sub_(zeros).mul_(scales).view({matrix.columns, matrix.rows}).to(dtype).t().contiguous();
  }

 private:
  /// The codes of all words, in place of the dimension along which they are neighbours.
  at::Tensor codes_there(const at::Tensor& words, std::int64_t dim) const {
    auto places = at::arange(per_word_, words.options());
    if (!is_gptq()) places = places.view({2, 4}).t().flatten();  // kAwqPlace
    const auto shifts = dim == 0 ? (places * s_.bits).unsqueeze(1) : places * s_.bits;
    return words.unsqueeze(dim + 1)
        .bitwise_right_shift(shifts)
        .bitwise_and_(static_cast<std::int64_t>(mask_))
        .flatten(dim, dim + 1);
  }

  ScaleDtype scale_dtype() const {
    return s_.scales == at::kHalf       ? ScaleDtype::kHalf
           : s_.scales == at::kBFloat16 ? ScaleDtype::kBFloat16
                                        : ScaleDtype::kFloat;
  }

  /// Whether the inputs lie in the order of their groups, which are of whole words.
  bool has_groups_of_words() const { return !s_.listed && s_.group_size % per_word_ == 0; }

  /// The inputs of a matrix, group by group.
  struct InputGroups {
    std::vector<std::int32_t> order;   // empty: as they lie, in groups of whole words
    std::vector<std::int64_t> begins;  // of each group, and their end
    std::int64_t count() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  };
  InputGroups input_groups(const tensor::PackedMatrix& m) const {
    InputGroups out;
    out.begins.reserve(static_cast<std::size_t>(s_.groups + 1));
    if (!s_.listed) {
      for (std::int64_t begin = 0; begin < m.columns; begin += s_.group_size) out.begins.push_back(begin);
      out.begins.push_back(m.columns);
      if (!has_groups_of_words()) {
        out.order.resize(static_cast<std::size_t>(m.columns));
        std::iota(out.order.begin(), out.order.end(), 0);
      }
      return out;
    }
    const auto* listed = m.fields[kGroupOfInput].const_data_ptr<std::int32_t>();
    const auto group_of = [&](std::int64_t input) { return known_group(listed[input]); };
    out.begins.resize(static_cast<std::size_t>(s_.groups + 1));
    for (std::int64_t i = 0; i < m.columns; ++i) ++out.begins[group_of(i) + 1];
    std::partial_sum(out.begins.begin(), out.begins.end(), out.begins.begin());
    auto next = out.begins;
    out.order.resize(static_cast<std::size_t>(m.columns));
    for (std::int64_t i = 0; i < m.columns; ++i) out.order[next[group_of(i)]++] = static_cast<std::int32_t>(i);
    return out;
  }
  /// For a group that there is not: the last.
  std::size_t known_group(std::int64_t group) const {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(group, 0, s_.groups - 1));
  }

  struct ByInputs {
    std::vector<std::uint32_t> words;  // of float32, [columns, few], or pairs of bfloat16, [columns / 2, few]
    std::vector<float> sums;           // of each group's inputs: [groups, few]
  };
  /// Group by group, with rows of zeros up to grouped_rows(). x: contiguous.
  static ByInputs by_inputs(const at::Tensor& x, const InputGroups& groups) {
    const bool pairs = x.scalar_type() == at::kBFloat16;
    const auto few = grouped_rows(x.size(0)), of_word = std::int64_t{pairs ? 2 : 1}, words = x.size(1) / of_word;
    ByInputs out{std::vector<std::uint32_t>(static_cast<std::size_t>(words * few)),
                 std::vector<float>(static_cast<std::size_t>(groups.count() * few))};
    std::vector<std::uint32_t> row(static_cast<std::size_t>(words)), given(groups.order.size());
    for (std::int64_t f = 0; f < x.size(0); ++f) {
      auto& lying = given.empty() ? row : given;
      const auto bytes = row.size() * sizeof(std::uint32_t);  // perhaps not aligned as words are
      std::memcpy(lying.data(), static_cast<const std::byte*>(x.const_data_ptr()) + static_cast<std::size_t>(f) * bytes,
                  bytes);
      for (std::size_t w = 0; w < given.size(); ++w) row[w] = given[static_cast<std::size_t>(groups.order[w])];
      for (std::int64_t w = 0; w < words; ++w) out.words[w * few + f] = row[w];
      for (std::int64_t g = 0; g < groups.count(); ++g) {
        const auto begin = groups.begins[g] / of_word, end = groups.begins[g + 1] / of_word;
        out.sums[g * few + f] = (pairs ? sum_of_pairs : sum_of_floats)(row.data() + begin, end - begin);
      }
    }
    return out;
  }

  /// Columns begin to end are of one group.
  struct Run {
    std::int64_t begin, end;
    std::size_t group;
  };
  /// Of a tile's columns.
  struct Groups {
    std::vector<std::int32_t> of_column;
    std::vector<Run> runs;          // where columns are not listed
    std::vector<std::size_t> used;  // once each
  };
  /// A tile's, row by row.
  struct Words {
    std::int64_t columns;
    std::vector<std::uint32_t> values;
    const std::uint32_t* of_row(std::int64_t row) const { return values.data() + row * columns; }
  };

  bool is_gptq() const { return s_.layout == WordLayout::kGptq; }

  /// Turned: in the file, neighbours are of rows that follow each other, `apart` of them for each column.
  static Words turned(const std::int32_t* from, std::int64_t rows, std::int64_t columns, std::int64_t apart) {
    Words out{columns, std::vector<std::uint32_t>(static_cast<std::size_t>(rows * columns))};
    for (std::int64_t c = 0; c < columns; ++c, from += apart)
      for (std::int64_t r = 0; r < rows; ++r)
        out.values[static_cast<std::size_t>(r * columns + c)] = static_cast<std::uint32_t>(from[r]);
    return out;
  }
  /// Each has neighbours of one row.
  Words gptq_words(const tensor::PackedMatrix& m, const tensor::MatrixTile& tile) const {
    const auto first = tile.column / per_word_, end = (tile.column + tile.columns + per_word_ - 1) / per_word_;
    return turned(m.fields[kWords].const_data_ptr<std::int32_t>() + first * m.rows + tile.row, tile.rows, end - first,
                  m.rows);
  }
  /// Each has one column's of eight rows.
  Words awq_words(const tensor::PackedMatrix& m, const tensor::MatrixTile& tile) const {
    const auto first = tile.row / per_word_, end = (tile.row + tile.rows + per_word_ - 1) / per_word_;
    const auto apart = m.rows / per_word_;
    return turned(m.fields[kWords].const_data_ptr<std::int32_t>() + tile.column * apart + first, end - first,
                  tile.columns, apart);
  }

  void scale(const Groups& groups, const std::vector<float>& scales, const std::vector<float>& zeros, float* x) const {
    if (s_.listed) {
      const auto count = static_cast<std::int64_t>(groups.of_column.size());
      return scale_by_group(x, count, groups.of_column.data(), scales.data(), zeros.data());
    }
    for (const auto& [begin, end, group] : groups.runs) scale_run(x + begin, end - begin, scales[group], zeros[group]);
  }

  /// Of neighbours in a word: outputs, but GPTQ's codes.
  int place_of(std::int64_t index) const {
    const auto place = static_cast<std::size_t>(index % per_word_);
    return is_gptq() ? static_cast<int>(place) : kAwqPlace[place];
  }

  /// Groups that there are not: the last.
  Groups groups_of(const tensor::PackedMatrix& m, const tensor::MatrixTile& tile) const {
    Groups out;
    if (!s_.listed) {
      for (std::int64_t begin = 0; begin < tile.columns;) {
        const auto group = std::min((tile.column + begin) / s_.group_size, s_.groups - 1);
        const auto end = group + 1 == s_.groups ? tile.columns : (group + 1) * s_.group_size - tile.column;
        out.runs.push_back({begin, std::min(end, tile.columns), static_cast<std::size_t>(group)});
        out.used.push_back(out.runs.back().group);
        begin = out.runs.back().end;
      }
      return out;
    }
    std::vector<bool> is_used(static_cast<std::size_t>(s_.groups));
    const auto* listed = m.fields[kGroupOfInput].const_data_ptr<std::int32_t>() + tile.column;
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      const auto group = known_group(listed[c]);
      out.of_column.push_back(static_cast<std::int32_t>(group));
      if (!is_used[group]) out.used.push_back(group);
      is_used[group] = true;
    }
    return out;
  }

  /// A row's, of the groups that are used.
  void read_scales(const tensor::PackedMatrix& m, std::int64_t row, const Groups& groups, std::vector<float>& scales,
                   std::vector<float>& zeros) const {
    const auto apart = m.rows / per_word_;
    const auto* words = m.fields[kZeroWords].const_data_ptr<std::int32_t>() + row / per_word_;
    const int shift = s_.bits * place_of(row);
    for (const auto group : groups.used) {
      const auto g = static_cast<std::int64_t>(group);
      auto zero = static_cast<std::uint32_t>(words[g * apart]) >> shift & mask_;
      if (is_gptq() && s_.zeros_less_one) zero = (zero + 1) & mask_;
      zeros[group] = static_cast<float>(zero);
      scales[group] = scale_at(m.fields[kGroupScales], g * m.rows + row);
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
