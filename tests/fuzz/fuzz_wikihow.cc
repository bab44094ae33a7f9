// A CSV file of WikiHow with its lists of titles, parted by zero bytes: an error or rows, of no more than the file has.
#include <array>

#include "data/wikihow.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tessera;
  static const fuzz::Folder folder;
  std::string_view rest(reinterpret_cast<const char*>(bytes), size);
  if (rest.empty()) return 0;
  const bool all = (rest[0] & 1) != 0, whole = (rest[0] & 2) != 0;
  rest.remove_prefix(1);
  folder.write(all ? "wikihowAll.csv" : "wikihowSep.csv", fuzz::next_part(rest, '\0'));
  for (const char* split : {"train.txt", "val.txt", "test.txt"}) {
    const std::string name = (all ? "all_" : "sep_") + std::string(split);
    if (rest.empty())
      folder.remove(name);
    else
      folder.write(name, fuzz::next_part(rest, '\0'));
  }
  data::WikiHowOptions options;
  options.data_dir = folder.path();
  options.part = all ? data::WikiHowPart::kAll : data::WikiHowPart::kSep;
  if (whole) options.train_rows = options.validation_rows = 0;
  try {
    const data::WikiHow found = data::read_wikihow(options);
    for (const auto* rows : {&found.train, &found.validation}) {
      for (const auto& row : *rows) {
        if (data::clean_wikihow(row.source).find('\n') != std::string::npos || row.line < 2) __builtin_trap();
      }
    }
  } catch (const DataError&) {
  }
  return 0;
}
