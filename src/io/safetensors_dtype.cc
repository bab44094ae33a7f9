#include "io/safetensors_dtype.h"

#include <array>
#include <utility>

namespace tessera::io {
namespace {

// In the order of the reference implementation's enumeration, which decides the order of tensors in a file.
constexpr std::array<std::pair<std::string_view, at::ScalarType>, 17> kDtypes{{
    {"BOOL", at::kBool},
    {"U8", at::kByte},
    {"I8", at::kChar},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
    {"I16", at::kShort},
    {"U16", at::kUInt16},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I32", at::kInt},
    {"U32", at::kUInt32},
    {"F32", at::kFloat},
    {"C64", at::kComplexFloat},
    {"F64", at::kDouble},
    {"I64", at::kLong},
    {"U64", at::kUInt64},
}};

}  // namespace

std::optional<at::ScalarType> safetensors_dtype(std::string_view name) {
  for (const auto& [n, dtype] : kDtypes)
    if (n == name) return dtype;
  return std::nullopt;
}

std::string_view safetensors_dtype_name(at::ScalarType dtype) {
  for (const auto& [name, d] : kDtypes)
    if (d == dtype) return name;
  return {};
}

int safetensors_dtype_rank(at::ScalarType dtype) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].second == dtype) return static_cast<int>(i);
  return -1;
}

std::string safetensors_dtype_names() {
  std::string out;
  for (const auto& [name, dtype] : kDtypes) out.append(out.empty() ? "" : ", ").append(name);
  return out;
}

}  // namespace tessera::io
