// The first byte chooses an ending, the rest is a data file of that kind: an error that names the file, or rows whose
// numbers rise.
#include <array>

#include "data/row_source.h"
#include "fuzz/json_lines.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const fuzz::Folder folder;
  constexpr std::array<const char*, 4> kNames{"rows.jsonl", "rows.json", "rows.csv", "rows.txt"};
  if (size == 0) return 0;
  const std::string file =
      folder.write(kNames[data[0] % kNames.size()], {reinterpret_cast<const char*>(data) + 1, size - 1});
  try {
    const auto rows = data::open_rows(file, "text");
    data::SourceRow row;
    for (std::int64_t last = 0; rows->next(row); last = row.number) {
      if (row.number <= last || data::parse_row(row) == nullptr) __builtin_trap();
    }
  } catch (const DataError& e) {
    if (std::string_view(e.what()).find(file) == std::string_view::npos) __builtin_trap();
  }
  return 0;
}

namespace {

/// JSON as such; of other files any bytes.
std::optional<std::string> changed_rows(std::string_view file, tessera::fuzz::Random& random) {
  if (file.empty() || file[0] % 4 > 1) return std::nullopt;
  const auto rows = file.substr(1);
  const auto changed =
      file[0] % 4 == 0 ? tessera::fuzz::changed_json_lines(rows, random) : tessera::fuzz::changed_json(rows, random);
  return changed ? std::optional(file[0] + *changed) : std::nullopt;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, changed_rows);
}
