#include "quant/four_bit_codec.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "quant/block_codes.h"
#include "quant/code_kernels.h"
#include "quant/four_bit_panels.h"
#include "tensor/device.h"
#include "tensor/device_codec.h"
#include "tensor/device_kernels.h"
#include "tensor/panel_codec.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

enum Field : std::size_t { kCodes, kAbsmax, kNestedAbsmax, kNestedOffset };

/// The scale of an element's block.
class Scales {
 public:
  Scales(const FourBitSettings& s, const tensor::PackedMatrix& matrix)
      : shift_(std::countr_zero(static_cast<std::uint64_t>(s.block))) {
    if (!s.nested) {
      absmax_ = matrix.fields[kAbsmax].const_data_ptr<float>();
      return;
    }
    nested_shift_ = std::countr_zero(static_cast<std::uint64_t>(s.nested_block));
    codes_ = matrix.fields[kAbsmax].const_data_ptr<std::uint8_t>();
    absmax_ = matrix.fields[kNestedAbsmax].const_data_ptr<float>();
    offset_ = *matrix.fields[kNestedOffset].const_data_ptr<float>();
  }
  void of_blocks(std::int64_t first, std::int64_t count, float* out) const {
    if (codes_ == nullptr) return static_cast<void>(std::copy_n(absmax_ + first, count, out));
    for (const auto end = first + count; first < end;) {
      const auto nested = first >> nested_shift_, numel = std::min(end, (nested + 1) << nested_shift_) - first;
      scale_places(codes_ + first, numel, map_, absmax_[nested], offset_, out);
      first += numel, out += numel;
    }
  }
  /// Of so many runs of kScaleRun elements: out[k * stride].
  void of_runs(std::int64_t element, std::int64_t runs, float* out, std::int64_t stride) const {
    for (std::int64_t k = 0; k < runs;) {
      const auto block = (element + k * kScaleRun) >> shift_;
      const auto end = std::min(runs, (((block + 1) << shift_) - element) / kScaleRun);
      for (const float scale = of_block(block); k < end; ++k) out[k * stride] = scale;
    }
  }

 private:
  float of_block(std::int64_t block) const {
    return codes_ == nullptr ? absmax_[block] : map_[codes_[block]] * absmax_[block >> nested_shift_] + offset_;
  }

  int shift_, nested_shift_ = 0;
  const float *map_ = dynamic_map(true).data(), *absmax_ = nullptr;
  const std::uint8_t* codes_ = nullptr;
  float offset_ = 0;
};

class FourBitCodec final : public tensor::Codec, public tensor::PanelCodec, public tensor::DeviceCodec {
 public:
  explicit FourBitCodec(const FourBitSettings& settings) : s_(settings) {}

  std::string name() const override {
    auto text = type_name(s_.type) + ", blocks of " + std::to_string(s_.block);
    if (s_.nested) text += ", double quantisation in blocks of " + std::to_string(s_.nested_block);
    return text;
  }
  std::int64_t block_numel() const override { return s_.block; }

  std::vector<tensor::PackedField> fields(std::int64_t rows, std::int64_t columns) const override {
    const auto numel = rows * columns, blocks = blocks_of(numel, s_.block);
    std::vector<tensor::PackedField> out = {{"", at::kByte, {(numel + 1) / 2, 1}, s_.block / 2}};
    if (!s_.nested) {
      out.push_back({"absmax", at::kFloat, {blocks}, sizeof(float)});
      return out;
    }
    out.push_back({"absmax", at::kByte, {blocks}, 1});
    out.push_back({"nested_absmax", at::kFloat, {blocks_of(blocks, s_.nested_block)}, sizeof(float)});
    out.push_back({"nested_offset", at::kFloat, {1}, sizeof(float)});
    return out;
  }

  void encode(const float* values, std::int64_t numel, const std::vector<std::byte*>& out) const override {
    std::vector<float> absmax(static_cast<std::size_t>(blocks_of(numel, s_.block)));
    auto* codes = reinterpret_cast<std::uint8_t*>(out[kCodes]);
    const auto blocks = static_cast<std::int64_t>(absmax.size());
    at::parallel_for(0, blocks, kElementsOfThread / s_.block, [&](std::int64_t first, std::int64_t last) {
      const auto begin = first * s_.block, count = std::min(numel, last * s_.block) - begin;
      four_bit_absmax(values + begin, count, s_.block, &absmax[static_cast<std::size_t>(first)]);
      encode_four_bit(s_.type, values + begin, count, s_.block, &absmax[static_cast<std::size_t>(first)],
                      codes + begin / 2);
    });
    if (!s_.nested) {
      std::memcpy(out[kAbsmax], absmax.data(), absmax.size() * sizeof(float));
      return;
    }
    encode_scales(absmax.data(), blocks, out);
  }

  void decode(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, float* out,
              std::int64_t stride) const override {
    const auto* codes = matrix.fields[kCodes].const_data_ptr<std::uint8_t>();
    const Scales scales(s_, matrix);
    if (matrix.columns % s_.block == 0 && tile.column % s_.block == 0 && tile.columns % s_.block == 0) {
      const auto blocks = tile.columns / s_.block, begin = tile.row * matrix.columns + tile.column;
      std::vector<float> found(static_cast<std::size_t>(tile.rows * blocks));
      for (std::int64_t r = 0; r < tile.rows; ++r)
        scales.of_blocks((begin + r * matrix.columns) / s_.block, blocks, &found[static_cast<std::size_t>(r * blocks)]);
      return decode_four_bit_rows(
          s_.type, {codes + begin / 2, matrix.columns / 2, found.data(), s_.block, tile.columns, tile.rows}, out,
          stride);
    }
    std::vector<float> found(static_cast<std::size_t>(blocks_of(tile.columns, s_.block) + 1));
    for (std::int64_t r = 0; r < tile.rows; ++r, out += stride) {
      const auto begin = (tile.row + r) * matrix.columns + tile.column, first = begin / s_.block;
      scales.of_blocks(first, blocks_of(begin + tile.columns, s_.block) - first, found.data());
      decode_four_bit(s_.type, codes, found.data() - first, s_.block, begin, tile.columns, out);
    }
  }

  at::Tensor decode_there(const tensor::PackedMatrix& matrix, at::ScalarType dtype) const override {
    const at::NoGradGuard no_grad;
    const auto& codes = matrix.fields[kCodes];
    if (tensor::device_kernels(codes) != nullptr && dtype != at::kDouble) return decode_by_kernel(matrix, dtype);
    const auto numel = matrix.rows * matrix.columns, whole = numel / s_.block;  // blocks
    const auto& of_code = four_bit_values(s_.type);
    const auto pairs = at::empty({256, 2}, at::kFloat);  // a byte's first element is in its upper half
    for (std::int64_t byte = 0; byte < 256; ++byte) {
      pairs.mutable_data_ptr<float>()[2 * byte] = of_code[static_cast<std::size_t>(byte >> 4)];
      pairs.mutable_data_ptr<float>()[2 * byte + 1] = of_code[static_cast<std::size_t>(byte & 15)];
    }
    const auto look_up = [](const at::Tensor& table, const at::Tensor& bytes) {
      return tensor::beside(table, bytes).index_select(0, bytes.flatten().to(at::kInt));
    };
    const auto values = look_up(pairs, codes).flatten();
    auto scales = matrix.fields[kAbsmax];
    if (s_.nested) {
      const auto nested = matrix.fields[kNestedAbsmax].repeat_interleave(s_.nested_block).narrow(0, 0, scales.numel());
      scales = look_up(map_beside(codes), scales).mul_(nested).add_(matrix.fields[kNestedOffset]);
    }
    values.narrow(0, 0, whole * s_.block).view({whole, s_.block}).mul_(scales.narrow(0, 0, whole).unsqueeze(1));
    if (whole < scales.numel()) values.narrow(0, whole * s_.block, numel - whole * s_.block).mul_(scales[whole]);
    return values.narrow(0, 0, numel).view({matrix.rows, matrix.columns}).to(dtype);
  }

  /// Scales that are packed themselves are few: the host packs them.
  std::vector<at::Tensor> encode_there(const at::Tensor& matrix) const override {
    const at::NoGradGuard no_grad;
    const auto x = matrix.view(-1);
    const auto numel = x.numel(), whole = numel / s_.block, rest = numel % s_.block;
    const auto blocks = x.narrow(0, 0, numel - rest).view({whole, s_.block});
    auto absmax = blocks.abs().amax(1);
    auto scaled = (blocks * absmax.clamp_min(kLeastScale).reciprocal().unsqueeze(1)).view(-1);
    if (rest > 0) {
      const auto last = x.narrow(0, numel - rest, rest);
      const auto scale = last.abs().amax(0, /*keepdim=*/true).clamp_min(kLeastScale);
      absmax = at::cat({absmax, scale});
      scaled = at::cat({scaled, last / scale, at::zeros({numel % 2}, x.options())});
    }
    const auto codes = codes_there(scaled).view({-1, 2});
    const auto bytes = codes.select(1, 0).mul(16).add_(codes.select(1, 1)).unsqueeze(1);
    if (!s_.nested) return {bytes, absmax};
    std::vector<at::Tensor> fields;
    std::vector<std::byte*> out;
    for (const auto& field : this->fields(matrix.size(0), matrix.size(1))) {
      fields.push_back(field.is_codes() ? at::Tensor() : at::empty(field.shape, field.dtype));
      out.push_back(field.is_codes() ? nullptr : static_cast<std::byte*>(fields.back().mutable_data_ptr()));
    }
    encode_scales(absmax.cpu().const_data_ptr<float>(), absmax.numel(), out);
    for (auto& field : fields) field = field.defined() ? tensor::beside(field, x) : bytes;
    return fields;
  }

  bool decode_panel(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, tensor::PairsOf pairs,
                    std::uint32_t* out) const override {
    static_assert(kPanelWidth == tensor::kPanelStride);
    if (!has_whole_runs(matrix, tile)) return false;
    const Scales scales(s_, matrix);
    if (pairs == tensor::PairsOf::kColumns)
      panel_of_columns(matrix, tile, scales, out);
    else
      panel_of_rows(matrix, tile, scales, out);
    return true;
  }

  bool decode_rows(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, std::uint16_t* out,
                   std::int64_t stride) const override {
    if (!has_whole_runs(matrix, tile)) return false;
    const auto begin = tile.row * matrix.columns + tile.column;
    if (tile.columns == matrix.columns && stride == tile.columns) {
      decode_run(matrix, begin, tile.rows * tile.columns, out);
    } else {
      for (std::int64_t r = 0; r < tile.rows; ++r)
        decode_run(matrix, begin + r * matrix.columns, tile.columns, out + r * stride);
    }
    return true;
  }

 private:
  static bool has_whole_runs(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile) {
    return decodes_panels() && matrix.columns % kScaleRun == 0 && tile.column % kScaleRun == 0 &&
           tile.columns % kScaleRun == 0;
  }

  /// Of values that were divided by their scales, which it may change.
  at::Tensor codes_there(at::Tensor scaled) const {
    const auto& steps = four_bit_steps(s_.type);
    const auto bounds = at::empty({15}, at::kFloat), ordered = at::empty({16}, at::kByte);
    std::copy(steps.bounds.begin(), steps.bounds.end(), bounds.mutable_data_ptr<float>());
    auto* codes = ordered.mutable_data_ptr<std::uint8_t>();
    codes[0] = static_cast<std::uint8_t>(steps.first);
    for (std::size_t i = 0; i < steps.changes.size(); ++i)
      codes[i + 1] = static_cast<std::uint8_t>(codes[i] ^ steps.changes[i]);
    const auto exceeded = at::bucketize(scaled.nan_to_num_(-1.0), tensor::beside(bounds, scaled), /*out_int32=*/true);
    return tensor::beside(ordered, scaled).index_select(0, exceeded);
  }

  /// absmax itself, packed: the fields behind the codes.
  void encode_scales(const float* absmax, std::int64_t blocks, const std::vector<std::byte*>& out) const {
    const float offset = mean_of(absmax, blocks);
    std::memcpy(out[kNestedOffset], &offset, sizeof offset);
    encode_absmax(s_, absmax, blocks, offset, reinterpret_cast<float*>(out[kNestedAbsmax]),
                  reinterpret_cast<std::uint8_t*>(out[kAbsmax]));
  }

  at::Tensor decode_by_kernel(const tensor::PackedMatrix& matrix, at::ScalarType dtype) const {
    const auto& codes = matrix.fields[kCodes];
    const auto values = at::empty({matrix.rows, matrix.columns}, codes.options().dtype(dtype));
    const auto map = s_.nested ? map_beside(codes) : at::Tensor();
    DeviceFourBit there{.codes = tensor::read_there<std::uint8_t>(codes),
                        .values = tensor::written_there(values),
                        .dtype = tensor::device_dtype(dtype),
                        .numel = values.numel(),
                        .block = s_.block,
                        .table = four_bit_values(s_.type).data(),
                        .absmax = nullptr,
                        .absmax_codes = nullptr,
                        .map = tensor::read_there<float>(map),
                        .nested_absmax = nullptr,
                        .nested_offset = nullptr,
                        .nested_block = s_.nested_block};
    if (s_.nested) {
      there.absmax_codes = tensor::read_there<std::uint8_t>(matrix.fields[kAbsmax]);
      there.nested_absmax = tensor::read_there<float>(matrix.fields[kNestedAbsmax]);
      there.nested_offset = tensor::read_there<float>(matrix.fields[kNestedOffset]);
    } else {
      there.absmax = tensor::read_there<float>(matrix.fields[kAbsmax]);
    }
    tensor::launch(&DeviceKernels::four_bit, "four_bit", codes, there);
    return values;
  }

  /// dynamic_map(true) where t lies.
  static at::Tensor map_beside(const at::Tensor& t) {
    thread_local at::Tensor map;
    if (!map.defined() || map.device() != t.device()) {
      map = at::empty({256}, at::kFloat);
      std::copy_n(dynamic_map(true).data(), 256, map.mutable_data_ptr<float>());
      map = tensor::beside(map, t);
    }
    return map;
  }

  /// Elements that lie beside each other, in whole runs of kScaleRun.
  void decode_run(const tensor::PackedMatrix& matrix, std::int64_t begin, std::int64_t numel,
                  std::uint16_t* out) const {
    constexpr std::int64_t kPart = 1 << 14;  // elements at a time
    std::array<float, kPart / kScaleRun + 1> found;
    const Scales scales(s_, matrix);
    for (const auto end = begin + numel; begin < end; begin += kPart, out += kPart) {
      const auto count = std::min(kPart, end - begin), first = begin / s_.block;
      scales.of_blocks(first, blocks_of(begin + count, s_.block) - first, found.data());
      decoded_run({four_bit_values(s_.type).data(), matrix.fields[kCodes].const_data_ptr<std::uint8_t>() + begin / 2,
                   count, found.data(), begin % s_.block, s_.block},
                  out);
    }
  }

  CodeTile codes_of(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile) const {
    const auto* codes = matrix.fields[kCodes].const_data_ptr<std::uint8_t>();
    return {four_bit_values(s_.type).data(), codes + (tile.row * matrix.columns + tile.column) / 2, matrix.columns / 2,
            tile.rows, tile.columns};
  }

  void panel_of_columns(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, const Scales& scales,
                        std::uint32_t* out) const {
    constexpr std::int64_t kRuns = 16;  // at a time: their scales lie in the first cache
    std::array<float, kRuns * kPanelWidth> found{};
    for (std::int64_t begin = 0; begin < tile.columns;
         begin += kRuns * kScaleRun, out += kRuns * kScaleRun / 2 * kPanelWidth) {
      const tensor::MatrixTile part{tile.row, tile.rows, tile.column + begin,
                                    std::min(kRuns * kScaleRun, tile.columns - begin)};
      for (std::int64_t r = 0; r < part.rows; ++r)
        scales.of_runs((part.row + r) * matrix.columns + part.column, part.columns / kScaleRun, &found[r], kPanelWidth);
      quant::panel_of_columns(codes_of(matrix, part), found.data(), out);
    }
  }

  void panel_of_rows(const tensor::PackedMatrix& matrix, const tensor::MatrixTile& tile, const Scales& scales,
                     std::uint32_t* out) const {
    constexpr std::int64_t kRows = 64, kRuns = kPanelWidth / kScaleRun;
    std::array<float, kRows * kRuns> found{};
    for (std::int64_t begin = 0; begin < tile.rows; begin += kRows, out += kRows / 2 * kPanelWidth) {
      const tensor::MatrixTile part{tile.row + begin, std::min(kRows, tile.rows - begin), tile.column, tile.columns};
      for (std::int64_t r = 0; r < part.rows; ++r)
        scales.of_runs((part.row + r) * matrix.columns + part.column, part.columns / kScaleRun, &found[r * kRuns], 1);
      quant::panel_of_rows(codes_of(matrix, part), found.data(), out);
    }
  }

  FourBitSettings s_;
};

}  // namespace

bool is_four_bit_block(std::int64_t numel) {
  return numel >= 32 && numel <= 4096 && std::has_single_bit(static_cast<std::uint64_t>(numel));
}

std::shared_ptr<const tensor::Codec> four_bit_codec(const FourBitSettings& settings) {
  for (const auto block : {settings.block, settings.nested_block}) {
    if (!is_four_bit_block(block))
      throw ConfigError("4-bit weights: blocks of " + std::to_string(block) +
                            "; there are blocks of 32, 64, 128, 256, 512, 1024, 2048 and 4096 elements",
                        "blocksize");
  }
  return std::make_shared<FourBitCodec>(settings);
}

float mean_of(const float* values, std::int64_t count) {
  constexpr std::int64_t kPart = 1 << 15;  // that libtorch adds on one thread
  const at::NoGradGuard no_grad;
  const auto sum_of = [&](std::int64_t begin, std::int64_t numel) {
    return at::from_blob(const_cast<float*>(values) + begin, {numel}, at::kFloat).sum().item<float>();
  };
  if (count <= kPart) return sum_of(0, count) / static_cast<float>(count);
  double sum = 0;
  for (std::int64_t i = 0; i < count; i += kPart) sum += sum_of(i, std::min(kPart, count - i));
  return static_cast<float>(sum / static_cast<double>(count));
}

void encode_absmax(const FourBitSettings& settings, const float* absmax, std::int64_t count, float offset,
                   float* nested_absmax, std::uint8_t* codes) {
  const auto block = settings.nested_block;
  at::parallel_for(0, blocks_of(count, block), kElementsOfThread / block, [&](std::int64_t first, std::int64_t last) {
    std::vector<float> rest(static_cast<std::size_t>(block));
    for (auto begin = first * block; begin < std::min(count, last * block); begin += block) {
      const auto numel = std::min(block, count - begin);
      for (std::int64_t i = 0; i < numel; ++i) rest[static_cast<std::size_t>(i)] = absmax[begin + i] - offset;
      encode_dynamic(true, rest.data(), numel, block, nested_absmax + begin / block, codes + begin);
    }
  });
}

}  // namespace tessera::quant
