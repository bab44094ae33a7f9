#include "models/gguf_layout.h"

namespace tessera::models {

using RowMap = std::function<std::int64_t(std::int64_t)>;

RowMap rotary_rows(std::int64_t rows, std::int64_t heads) {
  const auto size = rows / heads, half = size / 2;
  return [=](std::int64_t r) {
    const auto head = r / size, within = r % size;
    return head * size + within % half * 2 + within / half;
  };
}

RowMap interleaved_rows(std::int64_t rows, std::int64_t heads) {
  const auto size = rows / 3 / heads;
  return [=](std::int64_t r) {
    const auto head = r / (3 * size), part = r / size % 3;
    return (part * heads + head) * size + r % size;
  };
}

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

RowMap expert_rows(std::int64_t rows, std::int64_t expert) {
  return [=](std::int64_t r) { return expert * rows + r; };
}

}  // namespace tessera::models
