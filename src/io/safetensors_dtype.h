#pragma once
// The dtype names of the safetensors format.
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace tessera::io {

/// "F32" -> at::kFloat ...; nothing for an unknown name or one that torch stores otherwise (sub-byte floats).
std::optional<at::ScalarType> safetensors_dtype(std::string_view name);

/// at::kFloat -> "F32" ...; empty for dtypes that the format does not have.
std::string_view safetensors_dtype_name(at::ScalarType dtype);

/// Position in the format's own order (by alignment); files hold tensors in descending order of it.
int safetensors_dtype_rank(at::ScalarType dtype);

/// "BOOL, U8, ...", for messages.
std::string safetensors_dtype_names();

}  // namespace tessera::io
