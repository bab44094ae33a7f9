#include "text/bpe_merge.h"

#include <limits>
#include <queue>

namespace tessera::text {
namespace {

constexpr std::size_t kShort = 24;  // up to here scanning all neighbours beats a heap

void merge_short(const MergeTable& merges, std::vector<Symbol>& symbols) {
  constexpr auto kNone = std::numeric_limits<std::int32_t>::max();
  Merge next[kShort];  // of symbol i and the one after it
  auto count = symbols.size();
  const auto look_up = [&](std::size_t i) {
    next[i] = merges.find(symbols[i].id, symbols[i + 1].id);
    if (next[i].rank < 0) next[i].rank = kNone;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i)
      if (next[i].rank < next[best].rank) best = i;
    if (next[best].rank == kNone) break;
    symbols[best].id = next[best].id;
    symbols[best].length += symbols[best + 1].length;
    --count;
    for (auto i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      next[i] = next[i + 1];
    }
    if (best + 1 < count) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  symbols.resize(count);
}

struct Candidate {
  std::int32_t rank, id;
  std::uint32_t left;
  bool operator<(const Candidate& other) const {  // std::priority_queue takes the greatest
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

struct Link {
  std::int32_t before, after;  // -1: none
};

void merge_long(const MergeTable& merges, std::vector<Symbol>& symbols) {
  thread_local std::vector<Link> links;
  thread_local std::vector<Candidate> store;
  const auto count = static_cast<std::int32_t>(symbols.size());
  links.resize(symbols.size());
  store.clear();
  const auto offer = [&](std::int32_t left, std::int32_t right, auto put) {
    const auto merge =
        merges.find(symbols[static_cast<std::size_t>(left)].id, symbols[static_cast<std::size_t>(right)].id);
    if (merge.rank >= 0) put(Candidate{merge.rank, merge.id, static_cast<std::uint32_t>(left)});
  };
  for (std::int32_t i = 0; i < count; ++i) {
    links[static_cast<std::size_t>(i)] = {i - 1, i + 1 < count ? i + 1 : -1};
    if (i + 1 < count) offer(i, i + 1, [&](const Candidate& c) { store.push_back(c); });
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(store));
  const auto push = [&](const Candidate& c) { queue.push(c); };
  while (!queue.empty()) {
    const auto top = queue.top();
    queue.pop();
    auto& symbol = symbols[top.left];
    auto& link = links[top.left];
    if (symbol.length == 0 || link.after < 0) continue;
    const auto right = static_cast<std::size_t>(link.after);
    const auto now = merges.find(symbol.id, symbols[right].id);
    if (now.rank < 0 || now.id != top.id) continue;  // one of the two has merged since
    symbol = {top.id, symbol.length + symbols[right].length};
    symbols[right].length = 0;
    link.after = links[right].after;
    if (link.after >= 0) {
      links[static_cast<std::size_t>(link.after)].before = static_cast<std::int32_t>(top.left);
      offer(static_cast<std::int32_t>(top.left), link.after, push);
    }
    if (link.before >= 0) offer(link.before, static_cast<std::int32_t>(top.left), push);
  }
  store = {};
  std::erase_if(symbols, [](const Symbol& s) { return s.length == 0; });
}

}  // namespace

void merge_symbols(const MergeTable& merges, std::vector<Symbol>& symbols) {
  if (symbols.size() <= kShort)
    merge_short(merges, symbols);
  else
    merge_long(merges, symbols);
}

}  // namespace tessera::text
