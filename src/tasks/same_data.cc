#include "tasks/same_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "base/grouped.h"
#include "data/cache_key.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

/// Of all ranks.
template <class Value>
std::vector<Value> gather_values(const Value& mine, comm::Communicator& group) {
  std::vector<Value> out;
  for (const auto& bytes : group.all_gather_objects({reinterpret_cast<const char*>(&mine), sizeof(mine)}))
    std::memcpy(&out.emplace_back(), bytes.data(), sizeof(mine));
  return out;
}

struct Summary {
  std::int64_t rows = 0, tokens = 0;
  std::uint64_t checksum = 0;
  auto operator<=>(const Summary&) const = default;
};

/// What most ranks have (of as many, what rank 0 has, or the first), and who has something else.
struct Parting {
  int like = 0;
  std::vector<int> others;
};

template <class Value>
Parting parting(const std::vector<Value>& all) {
  Parting out;
  const auto number_of = [&](std::size_t rank) { return std::count(all.begin(), all.end(), all[rank]); };
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (number_of(rank) > number_of(static_cast<std::size_t>(out.like))) out.like = static_cast<int>(rank);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[static_cast<std::size_t>(out.like)]) out.others.push_back(static_cast<int>(rank));
  return out;
}

/// "ranks 1, 3 do", "rank 1 does"
std::string who_does(const std::vector<int>& ranks) {
  constexpr std::size_t kShown = 8;
  const std::vector<int> shown(ranks.begin(),
                               ranks.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, ranks.size())));
  return fmt::format("rank{} {}{} {}", ranks.size() > 1 ? "s" : "", fmt::join(shown, ", "),
                     ranks.size() > kShown ? ", ..." : "", ranks.size() > 1 ? "do" : "does");
}

std::uint32_t checksum(const PreparedRows& split, std::int64_t begin, std::int64_t end) {
  std::uint32_t out = 0;
  for (auto i = begin; i < end; ++i) {
    const auto mark = split.mark(i).checksum;
    out = crc32c(&mark, sizeof(mark), out);
  }
  return out;
}

Summary summarize(const PreparedRows& split) {
  Summary out{split.count, 0, 0};
  std::uint32_t sum = 0;
  for (std::int64_t i = 0; i < split.count; ++i) {
    const auto mark = split.mark(i);
    out.tokens += mark.tokens;
    sum = crc32c(&mark.checksum, sizeof(mark.checksum), sum);
  }
  out.checksum = sum;
  return out;
}

/// Collective: the first row that two ranks have and that differs between them; `most` where none does.
std::int64_t first_difference(const PreparedRows& split, int a, int b, std::int64_t most, comm::Communicator& group) {
  std::int64_t same = 0, differs = most + 1;  // so many rows are the same; so many are not
  while (differs - same > 1) {
    const auto middle = same + (differs - same) / 2;
    const auto all = gather_values(checksum(split, same, std::min(middle, split.count)), group);
    (all[static_cast<std::size_t>(a)] == all[static_cast<std::size_t>(b)] ? same : differs) = middle;
  }
  return same;
}

std::string describe(const Summary& s) {
  return fmt::format("{} rows of {} tokens", grouped(s.rows), grouped(s.tokens));
}

[[noreturn]] void throw_parting(const PreparedRows& split, const std::vector<Summary>& all,
                                const text::Tokenizer& tokenizer, comm::Communicator& group) {
  const auto [like, others] = parting(all);
  const int other = others.front();
  const Summary theirs = all[static_cast<std::size_t>(like)], its = all[static_cast<std::size_t>(other)];
  const auto common = std::min(theirs.rows, its.rows), same = first_difference(split, like, other, common, group);
  const auto tokens = gather_values(same < split.count ? split.mark(same).tokens : 0, group);
  data::Fingerprint key;
  data::add_tokenizer(key, tokenizer);
  const auto tokenizers = group.all_gather_objects(key.hex());
  const bool same_tokenizer = tokenizers[static_cast<std::size_t>(like)] == tokenizers[static_cast<std::size_t>(other)];
  const auto where = same == common
                         ? fmt::format("the first {} are the same", grouped(same))
                         : fmt::format("the first that differs is number {}, of {} tokens on rank {} and {} on rank {}",
                                       grouped(same + 1), tokens[static_cast<std::size_t>(other)], other,
                                       tokens[static_cast<std::size_t>(like)], like);
  const auto remedy =
      same_tokenizer ? "Give all ranks the same data files and flags (over several machines compare the files' "
                       "checksums); where they are the same, remove the tokenised rows that an earlier run left in "
                       "--dataset_cache_dir"
                     : "Their tokenizers or chat templates are not the same: give all ranks the same";
  throw DataError(fmt::format("{} not have the rows to {} on that rank {} has: rank {} has {}, rank {} has {}; {}. {}",
                              who_does(others), split.use, like, other, describe(its), like, describe(theirs), where,
                              remedy));
}

}  // namespace

void require_same_data(const std::vector<PreparedRows>& splits, const std::vector<std::int64_t>& seeds,
                       const text::Tokenizer& tokenizer, comm::Communicator& group) {
  if (group.size() == 1) return;
  for (const auto& split : splits) {
    const auto all = gather_values(summarize(split), group);
    if (!parting(all).others.empty()) throw_parting(split, all, tokenizer, group);
  }
  const auto all = group.all_gather_objects(fmt::format("{}", fmt::join(seeds, " and ")));
  const auto [like, others] = parting(all);
  if (others.empty()) return;
  throw DataError(
      fmt::format("{} not draw rows as rank {} does: rank {} by the seed {}, rank {} by {}. Give all ranks "
                  "the same --seed and --data_seed",
                  who_does(others), like, others.front(), all[static_cast<std::size_t>(others.front())], like,
                  all[static_cast<std::size_t>(like)]));
}

}  // namespace tessera::tasks
