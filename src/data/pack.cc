#include "data/pack.h"

#include <algorithm>
#include <deque>
#include <map>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

using Tokens = std::vector<std::int32_t>;

SftRow part(const SftRow& row, std::size_t begin, std::size_t end) {
  const auto cut = [&](const Tokens& all) {
    return Tokens(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end));
  };
  return {cut(row.input_ids), cut(row.labels), {static_cast<std::int32_t>(end - begin)}};
}

void append(SftRow& to, const SftRow& row) {
  to.input_ids.insert(to.input_ids.end(), row.input_ids.begin(), row.input_ids.end());
  to.labels.insert(to.labels.end(), row.labels.begin(), row.labels.end());
}

// No document longer than `length`, no empty one.
std::vector<SftRow> fitting(std::vector<SftRow> rows, std::size_t length, bool split) {
  std::vector<SftRow> out;
  for (auto& row : rows) {
    const std::size_t size = row.input_ids.size();
    if (size == 0) continue;
    out.push_back(part(row, 0, std::min(size, length)));
    for (std::size_t begin = length; split && begin < size; begin += length)
      out.push_back(part(row, begin, std::min(begin + length, size)));
  }
  return out;
}

std::vector<SftRow> best_fit_decreasing(const std::vector<SftRow>& documents, std::size_t length) {
  std::vector<std::size_t> order(documents.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto left = documents[a].input_ids.size(), right = documents[b].input_ids.size();
    return left != right ? left > right : a < b;
  });
  std::vector<SftRow> bins;
  std::map<std::size_t, std::deque<std::size_t>> with_space;  // bins that are not full, the oldest first
  for (const std::size_t i : order) {
    const SftRow& document = documents[i];
    const std::size_t size = document.input_ids.size();
    const auto best = with_space.lower_bound(size);
    std::size_t bin = bins.size(), space = length;
    if (best == with_space.end()) {
      bins.emplace_back();
    } else {
      space = best->first;
      bin = best->second.front();
      best->second.pop_front();
      if (best->second.empty()) with_space.erase(best);
    }
    append(bins[bin], document);
    bins[bin].document_lengths.push_back(static_cast<std::int32_t>(size));
    if (space > size) with_space[space - size].push_back(bin);
  }
  return bins;
}

std::vector<SftRow> wrapped(const std::vector<SftRow>& rows, std::size_t length) {
  SftRow all;
  for (const auto& row : rows) append(all, row);
  return fitting({std::move(all)}, length, true);
}

}  // namespace

std::vector<SftRow> pack(std::vector<SftRow> rows, std::int64_t length, PackingStrategy strategy) {
  TESSERA_CHECK(length > 0, "packing needs a length");
  const auto size = static_cast<std::size_t>(length);
  if (strategy == PackingStrategy::kWrapped) return wrapped(rows, size);
  return best_fit_decreasing(fitting(std::move(rows), size, strategy == PackingStrategy::kBfdSplit), size);
}

}  // namespace tessera::data
