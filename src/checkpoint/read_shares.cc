#include "checkpoint/read_shares.h"

#include <algorithm>
#include <numeric>

namespace tessera::checkpoint {
namespace {

constexpr std::uint64_t kCutBytes = std::uint64_t{1} << 20;  // files that nobody needs are cut at multiples of this

struct Interval {
  ByteRange range;
  std::vector<int> readers;  // the first sums
};

class Shares {
 public:
  Shares(const std::vector<std::uint64_t>& file_bytes, const std::vector<std::vector<ByteRange>>& needed)
      : needed_(needed), next_(needed.size(), 0), loads_(needed.size(), 0) {
    for (std::size_t file = 0; file < file_bytes.size(); ++file) add_file(file, file_bytes[file]);
    spread();
  }

  std::vector<ReadShare> of(int rank) const {
    std::vector<ReadShare> out;
    for (const auto& i : intervals_)
      if (std::find(i.readers.begin(), i.readers.end(), rank) != i.readers.end())
        out.push_back({i.range, i.readers.front() == rank, i.readers.size() == 1});
    std::sort(out.begin(), out.end(), [](const ReadShare& a, const ReadShare& b) {
      return a.range.file != b.range.file ? a.range.file < b.range.file : a.range.begin < b.range.begin;
    });
    return out;
  }

 private:
  void add_file(std::size_t file, std::uint64_t bytes) {
    std::vector<std::uint64_t> cuts = {0, bytes};
    std::vector<std::uint64_t> taken(needed_.size(), 0);
    for (std::size_t rank = 0; rank < needed_.size(); ++rank) {
      while (next_[rank] < needed_[rank].size() && needed_[rank][next_[rank]].file < file) ++next_[rank];
      for (std::size_t i = next_[rank]; i < needed_[rank].size() && needed_[rank][i].file == file; ++i) {
        const auto& range = needed_[rank][i];
        cuts.insert(cuts.end(), {std::min(bytes, range.begin), std::min(bytes, range.end)});
        taken[rank] += range.end - range.begin;
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    const auto most = std::max_element(taken.begin(), taken.end());
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      Interval interval{{file, cuts[i], cuts[i + 1]}, readers_of(file, cuts[i])};
      if (interval.readers.empty() && *most == 0) {
        unneeded_.push_back(interval.range);
        continue;
      }
      if (interval.readers.empty()) interval.readers = {static_cast<int>(most - taken.begin())};
      for (const int rank : interval.readers) loads_[static_cast<std::size_t>(rank)] += cuts[i + 1] - cuts[i];
      intervals_.push_back(std::move(interval));
    }
  }

  /// Who needs the byte at `begin`; asked in ascending order.
  std::vector<int> readers_of(std::size_t file, std::uint64_t begin) {
    std::vector<int> out;
    for (std::size_t rank = 0; rank < needed_.size(); ++rank) {
      const auto& ranges = needed_[rank];
      auto& next = next_[rank];
      while (next < ranges.size() && ranges[next].file == file && ranges[next].end <= begin) ++next;
      if (next < ranges.size() && ranges[next].file == file && ranges[next].begin <= begin)
        out.push_back(static_cast<int>(rank));
    }
    return out;
  }

  /// Fills the ranks up to their mean, one after the other, so that each has one stretch of it.
  void spread() {
    std::uint64_t total = std::accumulate(loads_.begin(), loads_.end(), std::uint64_t{0});
    for (const auto& range : unneeded_) total += range.end - range.begin;
    const std::uint64_t level = (total + loads_.size() - 1) / loads_.size();
    std::size_t rank = 0;
    for (ByteRange rest : unneeded_) {
      while (rest.begin < rest.end) {
        while (rank + 1 < loads_.size() && loads_[rank] >= level) ++rank;
        const std::uint64_t room = rank + 1 < loads_.size() ? level - loads_[rank] : rest.end - rest.begin;
        const std::uint64_t cut = (rest.begin + room + kCutBytes - 1) / kCutBytes * kCutBytes;
        const std::uint64_t end = std::min(rest.end, cut);
        intervals_.push_back({{rest.file, rest.begin, end}, {static_cast<int>(rank)}});
        loads_[rank] += end - rest.begin;
        rest.begin = end;
      }
    }
  }

  const std::vector<std::vector<ByteRange>>& needed_;
  std::vector<std::size_t> next_;     // for each rank: the first range that is not behind us
  std::vector<std::uint64_t> loads_;  // bytes that each rank reads
  std::vector<Interval> intervals_;
  std::vector<ByteRange> unneeded_;
};

}  // namespace

std::vector<ReadShare> share_reading(const std::vector<std::uint64_t>& file_bytes,
                                     const std::vector<std::vector<ByteRange>>& needed, int rank) {
  return Shares(file_bytes, needed).of(rank);
}

void append_range(std::vector<ByteRange>& ranges, const ByteRange& next) {
  if (!ranges.empty() && ranges.back().file == next.file && ranges.back().end == next.begin)
    ranges.back().end = next.end;
  else
    ranges.push_back(next);
}

}  // namespace tessera::checkpoint
