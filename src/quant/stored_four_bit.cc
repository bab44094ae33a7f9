// What bitsandbytes and transformers store for a 4-bit matrix NAME: NAME (codes, as bytes of any dtype), NAME.absmax,
// NAME.quant_map, with double quantisation NAME.nested_absmax and NAME.nested_quant_map, and JSON as bytes in
// NAME.quant_state.bitsandbytes__nf4 or __fp4.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/bounded_json.h"
#include "base/json_text.h"
#include "quant/stored_matrix.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

using nlohmann::json;

const std::string kState = ".quant_state.bitsandbytes__";

/// The first bytes, as far as they are text.
std::string excerpt_of(const char* text, std::int64_t numel) {
  std::string shown;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(numel, 40); ++i)
    shown += text[i] >= ' ' && text[i] <= '~' ? text[i] : '.';
  return "'" + shown + (numel > 40 ? "...'" : "'");
}

json read_state(const io::TensorSource& source, const io::TensorInfo& info) {
  constexpr std::int64_t kLongest = 1 << 16;
  if (info.nbytes() > kLongest)
    refuse_tensor(
        info, fmt::format("has {} bytes; expected the JSON of a 4-bit state, of at most {}", info.nbytes(), kLongest));
  auto bytes = at::empty({info.nbytes()}, at::kByte);
  source.read_bytes(info.name, 0, bytes);
  const auto* text = static_cast<const char*>(bytes.const_data_ptr());
  const std::string_view all(text, static_cast<std::size_t>(bytes.numel()));
  auto state = json::parse(bounded_json(all, info.name), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object())
    refuse_tensor(info, "expected the JSON that bitsandbytes writes, found " + excerpt_of(text, bytes.numel()));
  return state;
}

/// A key of the state that must be there, and of what kind.
const json& require_key(const json& state, const io::TensorInfo& info, const char* key, const std::string& expected) {
  const auto found = state.find(key);
  if (found == state.end())
    refuse_tensor(info, fmt::format("its JSON lacks '{}' ({}): {}", key, expected, json_text(state)));
  return *found;
}
[[noreturn]] void refuse_key(const json& value, const io::TensorInfo& info, const char* key,
                             const std::string& expected) {
  refuse_tensor(info, fmt::format("its JSON's '{}' is {}; expected {}", key, json_text(value), expected));
}

std::int64_t whole_number(const json& state, const io::TensorInfo& info, const char* key, const std::string& expected) {
  const auto& value = require_key(state, info, key, expected);
  if (!value.is_number_integer()) refuse_key(value, info, key, expected);
  return value.get<std::int64_t>();
}

/// A block that the codec has.
std::int64_t block_size(const json& state, const io::TensorInfo& info, const char* key) {
  const auto expected = "one of 32, 64, 128, 256, 512, 1024, 2048 and 4096 elements";
  const auto block = whole_number(state, info, key, expected);
  if (!is_four_bit_block(block)) refuse_key(state.at(key), info, key, expected);
  return block;
}

at::ScalarType dtype_of(const json& state, const io::TensorInfo& info) {
  const auto expected = "float32, bfloat16 or float16";
  const auto& name = require_key(state, info, "dtype", expected);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    if (name == c10::getDtypeNames(dtype).first) return dtype;
  refuse_key(name, info, "dtype", expected);
}

std::pair<std::int64_t, std::int64_t> shape_of(const json& state, const io::TensorInfo& info) {
  const auto expected = "the rows and columns of a matrix";
  const auto& shape = require_key(state, info, "shape", expected);
  const auto is_size = [](const json& size) {
    return size.is_number_integer() && size.get<std::int64_t>() > 0 && size.get<std::int64_t>() < (1LL << 31);
  };
  if (!shape.is_array() || shape.size() != 2 || !is_size(shape[0]) || !is_size(shape[1]))
    refuse_key(shape, info, "shape", expected);
  return {shape[0].get<std::int64_t>(), shape[1].get<std::int64_t>()};
}

float offset_of(const json& state, const io::TensorInfo& info) {
  const auto expected = "the mean of the scales";
  const auto& value = require_key(state, info, "nested_offset", expected);
  const float offset = value.is_number() ? value.get<float>() : NAN;
  if (!std::isfinite(offset)) refuse_key(value, info, "nested_offset", expected);
  return offset;
}

/// A state, and the offset of double quantisation where there is one.
struct State {
  FourBitSettings settings;
  StoredMatrix matrix;
  float offset = 0;
};

State describe(const io::TensorInfo& info, const std::string& type, const json& json) {
  State state;
  auto& [settings, matrix, offset] = state;
  const auto known = four_bit_type(type);
  if (!known) refuse_tensor(info, "codes of type '" + type + "'; known are nf4 and fp4");
  if (json.contains("quant_type") && json.at("quant_type") != type)
    refuse_key(json.at("quant_type"), info, "quant_type", "that of its name, " + type);
  settings.type = *known;
  settings.block = block_size(json, info, "blocksize");
  matrix.dtype = dtype_of(json, info);
  std::tie(matrix.rows, matrix.columns) = shape_of(json, info);
  settings.nested = json.contains("nested_blocksize");
  if (settings.nested) {
    settings.nested_block = block_size(json, info, "nested_blocksize");
    offset = offset_of(json, info);
  }
  matrix.codec = four_bit_codec(settings);
  return state;
}

/// Tables differ in a last bit with the processor and the libtorch that made them (torch.linspace).
template <std::size_t N>
void check_map(const io::TensorSource& source, const std::string& name, const std::array<float, N>& ours) {
  const auto* info = source.find(name);
  if (!info) return;
  if (info->numel() != static_cast<std::int64_t>(N) || info->dtype != at::kFloat)
    refuse_tensor(*info, fmt::format("has {} values of {}; expected a table of {} of Float", info->numel(),
                                     c10::toString(info->dtype), N));
  constexpr float kLastBits = 0x1p-22f;  // of values up to 1
  const auto table = io::read_tensor(source, info->name).contiguous();
  const bool same = std::equal(ours.begin(), ours.end(), table.const_data_ptr<float>(),
                               [](float a, float b) { return std::abs(a - b) <= kLastBits; });
  if (!same) refuse_tensor(*info, "is another table than that of its type; custom codes are not read");
}

StoredMatrix placed(const io::TensorSource& source, const std::string& name, State state) {
  check_map(source, name + ".quant_map", four_bit_values(state.settings.type));
  if (state.settings.nested) check_map(source, name + ".nested_quant_map", dynamic_map(true));
  auto& matrix = state.matrix;
  for (const auto& field : matrix.codec->fields(matrix.rows, matrix.columns)) {
    if (field.name == "nested_offset")
      matrix.fields.emplace_back(at::full({1}, state.offset, at::kFloat));
    else
      matrix.fields.emplace_back(field.full_name(name));
  }
  return std::move(matrix);
}

}  // namespace

void find_four_bit(const io::TensorSource& source, StoredMatrices& found) {
  for (const auto& info : source.tensors()) {
    const auto at = info.name.find(kState);
    if (at == std::string::npos) continue;
    const auto name = info.name.substr(0, at), type = info.name.substr(at + kState.size());
    auto state = describe(info, type, read_state(source, info));
    if (!source.find(name)) refuse_tensor(info, "is a 4-bit state without codes '" + name + "'");
    if (!found.by_name.emplace(name, placed(source, name, std::move(state))).second)
      refuse_tensor(info, "'" + name + "' has two states");
    for (const char* end : {".quant_map", ".nested_quant_map"}) found.hidden.insert(name + end);
    found.hidden.insert(info.name);
  }
}

}  // namespace tessera::quant
