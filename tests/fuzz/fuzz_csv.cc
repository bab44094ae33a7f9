// Any bytes as a CSV file, in both dialects: records or an error that names a line, all input used up.
#include <cstdlib>

#include "data/csv_reader.h"
#include "data/wikihow.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto dialect : {data::CsvDialect::kRfc4180, data::CsvDialect::kPython}) {
    data::CsvReader reader("fuzz.csv", text, dialect);
    std::vector<std::string> fields;
    std::int64_t line = 0, last = 0;
    try {
      while (reader.next(fields, line)) {
        if (fields.empty() || line <= last) std::abort();
        last = line;
        for (auto& field : fields) {
          data::tidy_wikihow(fields.front(), field);
          if (data::clean_wikihow(field).find('"') != std::string::npos) std::abort();
        }
      }
    } catch (const DataError& e) {
      if (dialect == data::CsvDialect::kPython || e.line < 1) std::abort();
    }
  }
  return 0;
}
