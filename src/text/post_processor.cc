#include "text/post_processor.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::text {
namespace {

void append(const Encoding& from, Encoding& to) {
  to.ids.insert(to.ids.end(), from.ids.begin(), from.ids.end());
  to.offsets.insert(to.offsets.end(), from.offsets.begin(), from.offsets.end());
}

void keep(Encoding& encoding, std::int64_t count, Side side) {
  const auto excess = static_cast<std::ptrdiff_t>(encoding.ids.size()) - count;
  if (excess <= 0) return;
  const auto from = side == Side::kLeft ? 0 : count;
  encoding.ids.erase(encoding.ids.begin() + from, encoding.ids.begin() + from + excess);
  encoding.offsets.erase(encoding.offsets.begin() + from, encoding.offsets.begin() + from + excess);
}

// The longer text is cut first; when the shorter one is above half too, both get half, the longer one the odd token.
std::pair<std::int64_t, std::int64_t> longest_first(std::int64_t a, std::int64_t b, std::int64_t max_length) {
  auto shorter = std::min(a, b);
  auto longer = shorter > max_length ? shorter : std::max(shorter, max_length - shorter);
  if (shorter + longer > max_length) {
    shorter = max_length / 2;
    longer = shorter + max_length % 2;
  }
  return a > b ? std::pair(longer, shorter) : std::pair(shorter, longer);
}

}  // namespace

std::int64_t PostProcessor::added(bool is_pair) const {
  std::int64_t count = 0;
  for (const auto& part : is_pair ? pair : single) count += static_cast<std::int64_t>(part.ids.size());
  return count;
}

Encoding PostProcessor::apply(const Encoding& first, const Encoding* second, bool add_special_tokens) const {
  Encoding out;
  for (const auto& part : second ? pair : single) {
    if (part.kind == TemplatePart::Kind::kFirst) append(first, out);
    if (part.kind == TemplatePart::Kind::kSecond && second) append(*second, out);
    if (add_special_tokens) out.ids.insert(out.ids.end(), part.ids.begin(), part.ids.end());
    out.offsets.resize(out.ids.size());
    out.type_ids.resize(out.ids.size(), part.type_id);
  }
  return out;
}

void truncate(Encoding& first, Encoding* second, std::int64_t max_length, Truncation truncation, Side side) {
  const auto a = static_cast<std::int64_t>(first.ids.size());
  const auto b = second ? static_cast<std::int64_t>(second->ids.size()) : 0;
  max_length = std::max<std::int64_t>(max_length, 0);
  const auto excess = a + b - max_length;
  if (excess <= 0) return;
  if (truncation == Truncation::kLongestFirst || max_length == 0) {
    if (!second) return keep(first, max_length, side);
    const auto [n, m] = longest_first(a, b, max_length);
    keep(first, n, side);
    keep(*second, m, side);
    return;
  }
  auto* cut = truncation == Truncation::kOnlyFirst ? &first : second;
  const auto length = truncation == Truncation::kOnlyFirst ? a : b;
  if (!cut || length <= excess)
    throw DataError(fmt::format("cannot cut {} tokens from a text of {}; allow more tokens or cut the longer text",
                                excess, length));
  keep(*cut, length - excess, side);
}

}  // namespace tessera::text
