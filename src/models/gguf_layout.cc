#include "models/gguf_layout.h"

namespace tessera::models {

using RowMap = std::function<std::int64_t(std::int64_t)>;

namespace {

/// Each head's halves are interleaved in the file.
RowMap rotary_rows(std::int64_t rows, std::int64_t heads) {
  const auto size = rows / heads, half = size / 2;
  return [=](std::int64_t r) {
    const auto head = r / size, within = r % size;
    return head * size + within % half * 2 + within / half;
  };
}

/// Query, key and value side by side for each head; in the file all queries, all keys, all values.
RowMap interleaved_rows(std::int64_t rows, std::int64_t heads) {
  const auto size = rows / 3 / heads;
  return [=](std::int64_t r) {
    const auto head = r / (3 * size), part = r / size % 3;
    return (part * heads + head) * size + r % size;
  };
}

/// For each key/value head its queries, then key, then value; in the file all queries, all keys, all values.
RowMap grouped_rows(std::int64_t rows, GgufHeads h) {
  const auto size = rows / (h.heads + 2 * h.key_value_heads), group = h.heads / h.key_value_heads;
  return [=](std::int64_t r) {
    const auto at = r / size, kv = at / (group + 2), member = at % (group + 2);
    const auto head = member < group    ? kv * group + member
                      : member == group ? h.heads + kv
                                        : h.heads + h.key_value_heads + kv;
    return head * size + r % size;
  };
}

}  // namespace

bool moves_rows(GgufArrangement arrangement) {
  return arrangement == GgufArrangement::kRotaryQuery || arrangement == GgufArrangement::kRotaryKey ||
         arrangement == GgufArrangement::kInterleaved || arrangement == GgufArrangement::kGrouped;
}

RowMap moved_rows(GgufArrangement arrangement, std::int64_t rows, GgufHeads h) {
  const bool has_rows = h.key_value_heads > 0 && h.heads >= h.key_value_heads && h.heads <= rows;
  if (!moves_rows(arrangement) || !has_rows || h.heads % h.key_value_heads != 0) return nullptr;
  const bool is_query = arrangement == GgufArrangement::kRotaryQuery,
             is_key = arrangement == GgufArrangement::kRotaryKey,
             is_interleaved = arrangement == GgufArrangement::kInterleaved;
  const auto parts = is_query         ? 2 * h.heads
                     : is_key         ? 2 * h.key_value_heads
                     : is_interleaved ? 3 * h.heads
                                      : h.heads + 2 * h.key_value_heads;
  if (rows % parts != 0) return nullptr;
  if (is_query || is_key) return rotary_rows(rows, is_query ? h.heads : h.key_value_heads);
  return is_interleaved ? interleaved_rows(rows, h.heads) : grouped_rows(rows, h);
}

RowMap expert_rows(std::int64_t rows, std::int64_t expert) {
  return [=](std::int64_t r) { return expert * rows + r; };
}

}  // namespace tessera::models
