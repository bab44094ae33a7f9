#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "base/python_json.h"

namespace tessera::verify {

/// A file that the reference wrote with Python: NaN and infinities are null.
inline nlohmann::json read_reference_json(const std::string& file) {
  return nlohmann::json::parse(without_non_numbers(read_file(file)));
}

}  // namespace tessera::verify
