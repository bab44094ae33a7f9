#include "hub/listing.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "hub/name.h"
#include "tessera/base/error.h"

namespace tessera::hub {
namespace {

constexpr std::size_t kMostFiles = 200'000;

}  // namespace

Listing parse_listing(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  simdjson::dom::array siblings;
  std::string_view commit;
  if (parser.parse(json.data(), json.size()).get(root) || root["sha"].get(commit) || root["siblings"].get(siblings))
    throw DataError("its description lacks \"sha\" or \"siblings\"");
  if (!is_commit(commit)) throw DataError("its commit is no number of 40 digits");
  Listing out{.commit = std::string(commit), .files = {}};
  for (const simdjson::dom::element sibling : siblings) {
    std::string_view path;
    if (sibling["rfilename"].get(path) || !is_safe_path(path))
      throw DataError("it holds a file whose name is no path below its folder");
    out.files.emplace_back(path);
    if (out.files.size() > kMostFiles) throw DataError(fmt::format("it lists more than {} files", kMostFiles));
  }
  std::sort(out.files.begin(), out.files.end());
  return out;
}

}  // namespace tessera::hub
