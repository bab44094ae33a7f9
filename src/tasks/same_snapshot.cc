#include "tasks/same_snapshot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <set>

#include "hub/name.h"
#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

/// Empty for what is one's own.
std::string commit_of(const std::filesystem::path& path) {
  std::string before;
  for (const auto& part : path) {
    if (before == "snapshots" && hub::is_commit(part.string())) return part.string();
    before = part.string();
  }
  return {};
}

}  // namespace

void require_same_snapshot(const std::vector<std::string>& paths, comm::Communicator& group) {
  std::set<std::string> commits;  // how many files lie in each is no matter
  for (const auto& path : paths) commits.insert(commit_of(path));
  commits.erase("");
  const auto mine = fmt::format("{}", fmt::join(commits, " "));
  const auto all = group.all_gather_objects(mine);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw DataError(
          fmt::format("a repository has changed on the Hub while it was downloaded: rank 0 has the commits {}, "
                      "rank {} {}; start again, or name the commit behind '@'",
                      all[0], rank, all[rank]));
}

}  // namespace tessera::tasks
