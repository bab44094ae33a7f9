// What bitsandbytes and transformers store for a 4-bit matrix NAME: NAME (codes, as bytes of any dtype), NAME.absmax,
// NAME.quant_map, with double quantisation NAME.nested_absmax and NAME.nested_quant_map, and JSON as bytes in
// NAME.quant_state.bitsandbytes__nf4 or __fp4.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "quant/stored_matrix.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

using nlohmann::json;

const std::string kState = ".quant_state.bitsandbytes__";

json read_state(const io::TensorSource& source, const io::TensorInfo& info) {
  constexpr std::int64_t kLongest = 1 << 16;
  if (info.nbytes() > kLongest)
    refuse_tensor(info, fmt::format("{} bytes are too many for a 4-bit state", info.nbytes()));
  auto bytes = at::empty({info.nbytes()}, at::kByte);
  source.read_bytes(info.name, 0, bytes);
  const auto* text = static_cast<const char*>(bytes.const_data_ptr());
  auto state = json::parse(text, text + bytes.numel(), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) refuse_tensor(info, "is not the JSON that bitsandbytes writes");
  return state;
}

template <class T>
T value_of(const json& state, const io::TensorInfo& info, const char* key) {
  try {
    return state.at(key).get<T>();
  } catch (const json::exception&) {
    refuse_tensor(info, fmt::format("its JSON lacks '{}', or has it with another type: {}", key, state.dump()));
  }
}

at::ScalarType dtype_of(const json& state, const io::TensorInfo& info) {
  const auto name = value_of<std::string>(state, info, "dtype");
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    if (name == c10::getDtypeNames(dtype).first) return dtype;
  refuse_tensor(info, "values of dtype '" + name + "'; known are float32, bfloat16, float16");
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
  if (json.contains("quant_type") && value_of<std::string>(json, info, "quant_type") != type)
    refuse_tensor(info, "its JSON is of another type: " + json.dump());
  settings.type = *known;
  settings.block = value_of<std::int64_t>(json, info, "blocksize");
  matrix.dtype = dtype_of(json, info);
  const auto shape = value_of<std::vector<std::int64_t>>(json, info, "shape");
  const bool is_matrix =
      shape.size() == 2 && shape[0] > 0 && shape[1] > 0 && shape[0] < (1LL << 31) && shape[1] < (1LL << 31);
  if (!is_matrix) refuse_tensor(info, "is the state of no matrix: shape " + json.at("shape").dump());
  matrix.rows = shape[0], matrix.columns = shape[1];
  settings.nested = json.contains("nested_blocksize");
  if (settings.nested) {
    settings.nested_block = value_of<std::int64_t>(json, info, "nested_blocksize");
    offset = value_of<float>(json, info, "nested_offset");
    if (!std::isfinite(offset)) refuse_tensor(info, "its nested_offset is no number: " + json.dump());
  }
  try {
    matrix.codec = four_bit_codec(settings);
  } catch (const ConfigError& e) {
    refuse_tensor(info, e.what());
  }
  return state;
}

template <std::size_t N>
void check_map(const io::TensorSource& source, const std::string& name, const std::array<float, N>& ours) {
  const auto* info = source.find(name);
  if (!info) return;
  if (info->numel() != static_cast<std::int64_t>(N) || info->dtype != at::kFloat)
    refuse_tensor(*info, fmt::format("is no table of {} float32 values", N));
  const auto table = io::read_tensor(source, info->name).contiguous();
  if (std::memcmp(table.const_data_ptr(), ours.data(), sizeof ours) != 0)
    refuse_tensor(*info, "is another table than that of its type; custom codes are not read");
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
