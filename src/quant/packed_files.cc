#include "quant/packed_files.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "quant/int8_codec.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

constexpr std::size_t kOffsetWidth = 32;  // more than any float takes in JSON

std::string dtype_name(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

/// The JSON of bitsandbytes' quant_state, spaced as Python does it.
std::string state_json(const FourBitSettings& s, at::ScalarType dtype, std::int64_t rows, std::int64_t columns,
                       std::optional<float> offset, StateRoom room) {
  auto text = fmt::format(R"({{"quant_type": "{}", "blocksize": {}, "dtype": "{}", "shape": [{}, {}])",
                          type_name(s.type), s.block, dtype_name(dtype), rows, columns);
  std::string value;
  if (s.nested) {
    if (offset) value = json_text(nlohmann::json(static_cast<double>(*offset)));
    text += fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {})", s.nested_block,
                        value);
  }
  text += "}";
  if (s.nested && room == StateRoom::kForAnyOffset) text.append(kOffsetWidth - value.size(), ' ');
  return text;
}

std::string state_name(const FourBitSettings& s, const std::string& name) {
  return name + ".quant_state.bitsandbytes__" + type_name(s.type);
}

/// "model.q_proj.weight" without its last part.
std::string layer_of(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

template <class Map>
at::Tensor table_of(const Map& values) {
  auto table = at::empty({static_cast<std::int64_t>(values.size())}, at::kFloat);
  std::memcpy(table.mutable_data_ptr(), values.data(), sizeof(values));
  return table;
}

at::Tensor bytes_of(const std::string& text) {
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

NamedTensors four_bit_tensors(const FileForm& form, const FourBitSettings& s, const std::string& name,
                              const tensor::PackedMatrix& matrix, StateRoom room) {
  NamedTensors out;
  std::optional<float> offset;
  const auto fields = matrix.codec->fields(matrix.rows, matrix.columns);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto& values = matrix.fields[i];
    if (fields[i].name == "nested_offset") {
      offset = *values.const_data_ptr<float>();
    } else {
      out.emplace_back(fields[i].full_name(name),
                       fields[i].is_codes() ? values.view(-1).view(form.storage).view({-1, 1}) : values);
    }
  }
  out.emplace_back(name + ".quant_map", table_of(four_bit_values(s.type)));
  if (s.nested) out.emplace_back(name + ".nested_quant_map", table_of(dynamic_map(true)));
  out.emplace_back(state_name(s, name), bytes_of(state_json(s, form.dtype, matrix.rows, matrix.columns, offset, room)));
  return out;
}

}  // namespace

std::shared_ptr<const tensor::Codec> codec_of(const PackedSettings& settings, std::int64_t columns) {
  if (const auto* four_bit = std::get_if<FourBitSettings>(&settings)) return four_bit_codec(*four_bit);
  return int8_codec(columns, std::get<Int8Settings>(settings).threshold);
}

std::vector<io::TensorInfo> stored_infos(const FileForm& form, const std::string& name, std::int64_t rows,
                                         std::int64_t columns, std::optional<float> offset) {
  const auto fields = codec_of(form.settings, columns)->fields(rows, columns);
  std::vector<io::TensorInfo> infos;
  const auto* s = std::get_if<FourBitSettings>(&form.settings);
  if (!s)
    return {{name, fields[0].dtype, fields[0].shape, ""},
            {layer_of(name) + ".SCB", fields[1].dtype, fields[1].shape, ""},
            {layer_of(name) + ".weight_format", at::kByte, {}, ""}};
  const auto size = static_cast<std::int64_t>(c10::elementSize(form.storage));
  for (const auto& field : fields) {
    if (field.name == "nested_offset") continue;
    if (field.is_codes() && field.shape[0] % size != 0)
      throw ConfigError(fmt::format("'{}' has {} bytes of codes, which are no whole number of {}: take "
                                    "--bnb_4bit_quant_storage uint8",
                                    name, field.shape[0], dtype_name(form.storage)),
                        "bnb_4bit_quant_storage");
    if (field.is_codes())
      infos.push_back({name, form.storage, {field.shape[0] / size, 1}, ""});
    else
      infos.push_back({field.full_name(name), field.dtype, field.shape, ""});
  }
  infos.push_back({name + ".quant_map", at::kFloat, {16}, ""});
  if (s->nested) infos.push_back({name + ".nested_quant_map", at::kFloat, {256}, ""});
  const auto state =
      state_json(*s, form.dtype, rows, columns, offset, offset ? StateRoom::kExact : StateRoom::kForAnyOffset);
  infos.push_back({state_name(*s, name), at::kByte, {static_cast<std::int64_t>(state.size())}, ""});
  return infos;
}

NamedTensors stored_tensors(const FileForm& form, const std::string& name, const tensor::PackedMatrix& matrix,
                            StateRoom room) {
  if (const auto* s = std::get_if<FourBitSettings>(&form.settings))
    return four_bit_tensors(form, *s, name, matrix, room);
  return {{name, matrix.fields[0]},
          {layer_of(name) + ".SCB", matrix.fields[1]},
          {layer_of(name) + ".weight_format", at::zeros({}, at::kByte)}};
}

}  // namespace tessera::quant
