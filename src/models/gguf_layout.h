#pragma once
// How a tensor of a GGUF file becomes one of a Hugging Face folder.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::models {

struct GgufView {
  std::string name;                 // Hugging Face's
  std::string stored;               // the file's
  std::vector<std::int64_t> shape;  // Hugging Face's
  enum class Kind { kPlain, kRows, kTransposed, kMinusOne } kind = Kind::kPlain;
  /// kRows: row r (of shape[0]) is this row of the stored tensor.
  std::function<std::int64_t(std::int64_t)> stored_row = nullptr;
};

/// Sizes that the regrouping of rows depends on.
struct GgufHeads {
  std::int64_t heads = 0, key_value_heads = 0;
};

/// Rows of a rotary projection: each head's halves are interleaved in the file.
std::function<std::int64_t(std::int64_t)> rotary_rows(std::int64_t rows, std::int64_t heads);
/// Query, key and value side by side for each head; in the file all queries, all keys, all values.
std::function<std::int64_t(std::int64_t)> interleaved_rows(std::int64_t rows, std::int64_t heads);
/// For each key/value head its queries, then key, then value; in the file all queries, all keys, all values.
std::function<std::int64_t(std::int64_t)> grouped_rows(std::int64_t rows, GgufHeads heads);
/// One of several matrices that the file keeps as one tensor.
std::function<std::int64_t(std::int64_t)> expert_rows(std::int64_t rows, std::int64_t expert);

}  // namespace tessera::models
