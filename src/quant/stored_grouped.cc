// What GPTQ and AWQ folders store for a matrix L.weight: L.qweight, L.qzeros (int32), L.scales, and with GPTQ L.g_idx.
// Their shapes say which of the two it is, how many bits, and how large the groups are.
#include <fmt/format.h>

#include <bit>

#include "quant/grouped_codec.h"
#include "quant/stored_matrix.h"

namespace tessera::quant {
namespace {

struct GroupedTensors {
  const io::TensorInfo &qweight, &qzeros, &scales;
  const io::TensorInfo* g_idx;
};

std::string shape_text(const io::TensorInfo& info) {
  std::string text;
  for (const auto size : info.shape) text += (text.empty() ? "" : " x ") + std::to_string(size);
  return text;
}

const io::TensorInfo& required(const io::TensorSource& source, const io::TensorInfo& of, const std::string& name) {
  const auto* found = source.find(name);
  if (!found) refuse_tensor(of, "lacks '" + name + "', which its codes need");
  if (found->shape.size() != 2 || found->numel() <= 0) refuse_tensor(*found, "is no matrix");
  return *found;
}

void check_words(const io::TensorInfo& info) {
  if (info.dtype != at::kInt)
    refuse_tensor(info, fmt::format("is {}; words of codes are int32: were they cast?", c10::toString(info.dtype)));
}

/// Layout, bits, and the matrix's sizes.
struct Shape {
  WordLayout layout;
  std::int64_t bits, rows, columns;
};
Shape shape_of(const GroupedTensors& t) {
  const auto rows = t.scales.shape[1], groups = t.scales.shape[0], zero_words = t.qzeros.shape[1];
  Shape shape{WordLayout::kAwq, 32 * zero_words / rows, rows, t.qweight.shape[0]};
  if (t.qweight.shape[1] == rows) {
    shape.layout = WordLayout::kGptq;
    shape.columns = shape.bits > 0 ? t.qweight.shape[0] * 32 / shape.bits : 0;
  }
  const bool known = shape.bits == 4 || (shape.layout == WordLayout::kGptq && (shape.bits == 2 || shape.bits == 8));
  const bool fits = known && t.qzeros.shape[0] == groups && zero_words * 32 == rows * shape.bits &&
                    (shape.layout == WordLayout::kGptq || t.qweight.shape[1] == zero_words) && groups <= shape.columns;
  if (!fits)
    refuse_tensor(t.qweight, fmt::format("{}, with qzeros of {} and scales of {}: no GPTQ codes of 2, 4 or 8 bits "
                                         "([in * bits / 32, out], [groups, out * bits / 32], [groups, out]), nor AWQ's "
                                         "([in, out / 8], [groups, out / 8], [groups, out])",
                                         shape_text(t.qweight), shape_text(t.qzeros), shape_text(t.scales)));
  return shape;
}

/// act-order: inputs of a group do not follow each other.
bool is_listed(const io::TensorSource& source, const io::TensorInfo& info, std::int64_t columns, std::int64_t size,
               std::int64_t groups) {
  check_words(info);
  if (info.numel() != columns)
    refuse_tensor(info, fmt::format("has {} entries; the matrix has {} inputs", info.numel(), columns));
  const auto list = io::read_tensor(source, info.name).contiguous();
  const auto* group = list.const_data_ptr<std::int32_t>();
  bool listed = false;
  for (std::int64_t i = 0; i < columns; ++i) {
    if (group[i] < 0 || group[i] >= groups)
      refuse_tensor(info, fmt::format("says group {} for input {}; there are {}", group[i], i, groups));
    listed = listed || group[i] != i / size;
  }
  return listed;
}

/// Where config.json does not say it (`dynamic`: layers differ): GPTQ's sizes are powers of two, and the last group may
/// be short; AWQ's groups are full.
std::int64_t likely_group_size(const Shape& shape, std::int64_t groups) {
  const auto even = (shape.columns + groups - 1) / groups;
  const auto power = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(even)));
  const bool fits = groups > 1 && (shape.columns + power - 1) / power == groups;
  return shape.layout == WordLayout::kGptq && fits ? power : even;
}

/// What config.json says of all matrices.
void check_said(const GroupedTensors& t, const Shape& shape, const StoredSettings& said) {
  if (said.bits > 0 && said.bits != shape.bits)
    refuse_tensor(t.qweight,
                  fmt::format("has codes of {} bits; expected {}, as config.json says", shape.bits, said.bits));
  const auto groups = t.scales.shape[0];
  const auto expected = said.group_size > 0 ? (shape.columns + said.group_size - 1) / said.group_size : groups;
  if (groups != expected)
    refuse_tensor(t.scales, fmt::format("has {} groups for {} inputs; expected {}, as config.json says group_size {}",
                                        groups, shape.columns, expected, said.group_size));
}

}  // namespace

void find_grouped(const io::TensorSource& source, const StoredSettings& said, StoredMatrices& found) {
  const std::string end = ".qweight";
  for (const auto& info : source.tensors()) {
    if (!info.name.ends_with(end)) continue;
    const auto layer = info.name.substr(0, info.name.size() - end.size());
    const GroupedTensors t{required(source, info, info.name), required(source, info, layer + ".qzeros"),
                           required(source, info, layer + ".scales"), source.find(layer + ".g_idx")};
    check_words(t.qweight), check_words(t.qzeros);
    if (!at::isFloatingType(t.scales.dtype) || t.scales.dtype == at::kDouble)
      refuse_tensor(t.scales,
                    fmt::format("scales are float16, bfloat16 or float32, not {}", c10::toString(t.scales.dtype)));
    const auto shape = shape_of(t);
    check_said(t, shape, said);
    GroupedSettings settings;
    settings.layout = shape.layout;
    settings.bits = static_cast<int>(shape.bits);
    settings.groups = t.scales.shape[0];
    settings.group_size = said.group_size > 0 ? said.group_size : likely_group_size(shape, settings.groups);
    settings.zeros_less_one = !said.gptq_v2;
    settings.scales = t.scales.dtype;
    StoredMatrix matrix;
    matrix.fields = {info.name, t.qzeros.name, t.scales.name};
    if (t.g_idx) {
      settings.listed = is_listed(source, *t.g_idx, shape.columns, settings.group_size, settings.groups);
      if (settings.listed)
        matrix.fields.emplace_back(t.g_idx->name);
      else
        found.hidden.insert(t.g_idx->name);
    }
    matrix.codec = grouped_codec(settings);
    matrix.rows = shape.rows, matrix.columns = shape.columns, matrix.dtype = t.scales.dtype;
    found.by_name.emplace(layer + ".weight", std::move(matrix));
  }
}

}  // namespace tessera::quant
