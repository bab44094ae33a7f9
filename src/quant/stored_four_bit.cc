// What bitsandbytes and transformers store for a 4-bit matrix NAME: NAME (codes, as bytes of any dtype), NAME.absmax,
// NAME.quant_map, with double quantisation NAME.nested_absmax and NAME.nested_quant_map, and JSON as bytes in
// NAME.quant_state.bitsandbytes__nf4 or __fp4.
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/tensor_table.h"
#include "quant/block_codes.h"
#include "quant/packed_source.h"
#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

using nlohmann::json;

const std::string kState = ".quant_state.bitsandbytes__";
const std::string kScales = ".SCB";  // of LLM.int8

struct StoredMatrix {
  std::shared_ptr<const tensor::Codec> codec;
  FourBitSettings settings;
  at::ScalarType dtype = at::kFloat;  // of the values
  std::vector<std::int64_t> shape;
  float offset = 0;
};

[[noreturn]] void refuse(const io::TensorInfo& info, const std::string& what) {
  throw DataError(fmt::format("{}: tensor '{}': {}", info.file, info.name, what), info.file);
}

json read_state(const io::TensorSource& source, const io::TensorInfo& info) {
  constexpr std::int64_t kLongest = 1 << 16;
  if (info.nbytes() > kLongest) refuse(info, fmt::format("{} bytes are too many for a 4-bit state", info.nbytes()));
  auto bytes = at::empty({info.nbytes()}, at::kByte);
  source.read_bytes(info.name, 0, bytes);
  const auto* text = static_cast<const char*>(bytes.const_data_ptr());
  auto state = json::parse(text, text + bytes.numel(), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) refuse(info, "is not the JSON that bitsandbytes writes");
  return state;
}

template <class T>
T value_of(const json& state, const io::TensorInfo& info, const char* key) {
  try {
    return state.at(key).get<T>();
  } catch (const json::exception&) {
    refuse(info, fmt::format("its JSON lacks '{}', or has it with another type: {}", key, state.dump()));
  }
}

at::ScalarType dtype_of(const json& state, const io::TensorInfo& info) {
  const auto name = value_of<std::string>(state, info, "dtype");
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    if (name == c10::getDtypeNames(dtype).first) return dtype;
  refuse(info, "values of dtype '" + name + "'; known are float32, bfloat16, float16");
}

StoredMatrix describe(const io::TensorInfo& info, const std::string& type, const json& state) {
  StoredMatrix m;
  const auto known = four_bit_type(type);
  if (!known) refuse(info, "codes of type '" + type + "'; known are nf4 and fp4");
  m.settings.type = *known;
  m.settings.block = value_of<std::int64_t>(state, info, "blocksize");
  m.dtype = dtype_of(state, info);
  m.shape = value_of<std::vector<std::int64_t>>(state, info, "shape");
  const bool is_matrix =
      m.shape.size() == 2 && m.shape[0] > 0 && m.shape[1] > 0 && m.shape[0] < (1LL << 31) && m.shape[1] < (1LL << 31);
  if (!is_matrix) refuse(info, "is the state of no matrix: shape " + state.at("shape").dump());
  m.settings.nested = state.contains("nested_blocksize");
  if (m.settings.nested) {
    m.settings.nested_block = value_of<std::int64_t>(state, info, "nested_blocksize");
    m.offset = value_of<float>(state, info, "nested_offset");
  }
  try {
    m.codec = four_bit_codec(m.settings);
  } catch (const ConfigError& e) {
    refuse(info, e.what());
  }
  return m;
}

class StoredFourBit final : public PackedSource {
 public:
  explicit StoredFourBit(std::shared_ptr<const io::TensorSource> stored) : stored_(std::move(stored)) {
    for (const auto& info : stored_->tensors()) {
      const auto at = info.name.find(kState);
      if (at == std::string::npos) continue;
      const auto state = read_state(*stored_, info);
      matrices_.emplace(info.name.substr(0, at), describe(info, info.name.substr(at + kState.size()), state));
    }
    for (const auto& info : stored_->tensors()) {
      if (info.name.ends_with(kScales) && info.dtype == at::kFloat && stored_->find(weight_beside(info.name)))
        refuse(info, "8-bit weights (LLM.int8) are not read yet; name the folder of the model they were made from");
      if (!is_beside_codes(info.name) && !matrices_.contains(info.name)) table_.add(info);
    }
    for (const auto& [name, matrix] : matrices_) add(name, matrix);
    table_.sort();
  }

  bool packs() const { return !matrices_.empty(); }
  std::shared_ptr<const tensor::Codec> codec(const std::string& name) const override {
    const auto found = matrices_.find(name);
    return found == matrices_.end() ? nullptr : found->second.codec;
  }
  const std::vector<io::TensorInfo>& tensors() const override { return table_.all(); }
  const io::TensorInfo* find(const std::string& name) const override { return table_.find(name); }

  void read(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto found = matrices_.find(name);
    if (found == matrices_.end()) {
      const auto* offset = offset_of(name);
      if (!offset) return stored_->read(name, begin, std::move(out));
      out.fill_(*offset);
      return;
    }
    io::check_elements(*find(name), begin, out);
    read_values(name, found->second, begin, out);
  }

  void read_bytes(const std::string& name, std::int64_t begin, at::Tensor out) const override {
    const auto* offset = offset_of(name);
    if (!offset) return stored_->read_bytes(name, begin, std::move(out));
    TESSERA_CHECK(begin == 0 && out.numel() == sizeof(float), "an offset is read whole");
    std::memcpy(out.mutable_data_ptr(), offset, sizeof(float));
  }
  std::optional<io::MappedTensor> map(const std::string& name) const override {
    return matrices_.contains(name) || offset_of(name) ? std::nullopt : stored_->map(name);
  }
  std::optional<io::MappedTensor> map_bytes(const std::string& name) const override {
    return offset_of(name) ? std::nullopt : stored_->map_bytes(name);
  }

 private:
  static std::string weight_beside(const std::string& name) { return name.substr(0, name.rfind('.')) + ".weight"; }
  /// What belongs to a packed matrix and is listed with it, or not at all.
  bool is_beside_codes(const std::string& name) const {
    for (const char* end : {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"})
      if (name.ends_with(end) && matrices_.contains(name.substr(0, name.size() - std::strlen(end)))) return true;
    return name.find(kState) != std::string::npos;
  }
  const float* offset_of(const std::string& name) const {
    constexpr std::string_view kEnd = ".nested_offset";
    if (!name.ends_with(kEnd)) return nullptr;
    const auto found = matrices_.find(name.substr(0, name.size() - kEnd.size()));
    return found == matrices_.end() || !found->second.settings.nested ? nullptr : &found->second.offset;
  }

  void add(const std::string& name, const StoredMatrix& m) {
    const auto fields = m.codec->fields(m.shape[0], m.shape[1]);
    const auto* codes = stored_->find(name);
    if (!codes) throw DataError(fmt::format("tensor '{}' has a 4-bit state and no codes", name));
    check_map(name, ".quant_map", four_bit_values(m.settings.type));
    if (m.settings.nested) check_map(name, ".nested_quant_map", dynamic_map(true));
    for (const auto& field : fields) {
      const auto full = field.full_name(name);
      io::TensorInfo info{full, field.dtype, field.shape, codes->file};
      const auto bytes = info.nbytes();
      if (field.is_codes()) info = {full, m.dtype, m.shape, codes->file, bytes};
      table_.add(info);
      if (field.name == "nested_offset") continue;
      const auto* stored = stored_->find(full);
      if (!stored) refuse(*codes, "lacks its statistics '" + full + "'");
      if (stored->nbytes() != bytes || (!field.is_codes() && stored->dtype != field.dtype))
        refuse(*stored, fmt::format("has {} bytes of {}; a {} matrix of {} x {} has {} bytes", stored->nbytes(),
                                    c10::toString(stored->dtype), m.codec->name(), m.shape[0], m.shape[1], bytes));
    }
  }

  template <std::size_t N>
  void check_map(const std::string& name, const char* end, const std::array<float, N>& ours) const {
    const auto* info = stored_->find(name + end);
    if (!info) return;
    if (info->numel() != static_cast<std::int64_t>(N) || info->dtype != at::kFloat)
      refuse(*info, fmt::format("is no table of {} float32 values", N));
    const auto table = io::read_tensor(*stored_, info->name).contiguous();
    if (std::memcmp(table.const_data_ptr(), ours.data(), sizeof ours) != 0)
      refuse(*info, "is another table than that of its type; custom codes are not read");
  }

  /// Whole rows around the range are unpacked, some at a time.
  void read_values(const std::string& name, const StoredMatrix& m, std::int64_t begin, const at::Tensor& out) const {
    const auto matrix = whole(name, m);
    const auto columns = m.shape[1], rows_a_time = std::max<std::int64_t>(1, (1 << 20) / columns);
    for (std::int64_t done = 0; done < out.numel();) {
      const auto at = begin + done, row = at / columns, skipped = at % columns;
      const auto rows =
          std::min({rows_a_time, m.shape[0] - row, (skipped + out.numel() - done + columns - 1) / columns});
      const auto values = tensor::unpack(matrix, {row, rows, 0, columns}, at::kFloat).view(-1);
      const auto count = std::min(out.numel() - done, values.numel() - skipped);
      out.narrow(0, done, count).copy_(values.narrow(0, skipped, count));
      done += count;
    }
  }

  tensor::PackedMatrix whole(const std::string& name, const StoredMatrix& m) const {
    tensor::PackedMatrix matrix{m.codec, m.shape[0], m.shape[1], {}};
    for (const auto& field : m.codec->fields(matrix.rows, matrix.columns)) {
      matrix.fields.push_back(at::empty(field.shape, field.dtype));
      read_bytes(field.full_name(name), 0, matrix.fields.back().view(-1).view(at::kByte));
    }
    return matrix;
  }

  std::shared_ptr<const io::TensorSource> stored_;
  std::map<std::string, StoredMatrix> matrices_;
  io::TensorTable table_;
};

}  // namespace

std::shared_ptr<PackedSource> stored_four_bit(std::shared_ptr<const io::TensorSource> stored) {
  const auto& tensors = stored->tensors();
  const bool is_quantised = std::any_of(tensors.begin(), tensors.end(), [](const io::TensorInfo& info) {
    return info.name.find(kState) != std::string::npos || info.name.ends_with(kScales);
  });
  if (!is_quantised) return nullptr;
  auto source = std::make_shared<StoredFourBit>(std::move(stored));
  return source->packs() ? source : nullptr;
}

}  // namespace tessera::quant
