// The first byte chooses an ending, the rest is a data file of that kind: an error that names the file, or rows whose
// numbers rise.
#include <array>

#include "data/row_source.h"
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
