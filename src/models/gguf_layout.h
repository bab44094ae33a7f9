#pragma once
// How a tensor of a GGUF file becomes one of a Hugging Face folder.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::models {

/// How the file holds a tensor that a folder has.
enum class GgufArrangement {
  kPlain,
  kRotaryQuery,  // each head's halves are interleaved
  kRotaryKey,
  kInterleaved,  // [query, key, value of each head] becomes [all queries, all keys, all values]
  kGrouped,      // the same of [a group's queries, its key, its value]
  kTransposed,   // matrices alone; vectors are plain
  kPlusOne,      // a norm's weight + 1
  kExperts       // those of a layer as one tensor [experts, rows, columns]
};

struct GgufView {
  std::string name;                 // Hugging Face's
  std::string stored;               // the file's
  std::vector<std::int64_t> shape;  // Hugging Face's
  GgufArrangement arrangement = GgufArrangement::kPlain;
  /// Row r (of shape[0]) is this row of the stored tensor; null: where no rows move.
  std::function<std::int64_t(std::int64_t)> stored_row = nullptr;
};

/// Sizes that the regrouping of rows depends on.
struct GgufHeads {
  std::int64_t heads = 0, key_value_heads = 0;
};

/// Where the file has row r of so many: of arrangements that move rows. Null: all others, which move none; and rows
/// that the heads do not divide.
std::function<std::int64_t(std::int64_t)> moved_rows(GgufArrangement arrangement, std::int64_t rows, GgufHeads heads);
/// Whether moved_rows() is for it.
bool moves_rows(GgufArrangement arrangement);
/// One of several matrices that the file keeps as one tensor.
std::function<std::int64_t(std::int64_t)> expert_rows(std::int64_t rows, std::int64_t expert);

}  // namespace tessera::models
