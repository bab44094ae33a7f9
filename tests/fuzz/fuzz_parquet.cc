// Any bytes as a Parquet file: an error or rows. The mutator keeps the form that every such file has ("PAR1", pages,
// footer, its length, "PAR1"), so that changes reach the pages and the footer instead of failing at the ends.
#include <cstring>

#include "data/parquet/parquet_rows.h"
#include "fuzz/read_rows.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::fuzz::read_rows(tessera::data::open_parquet, data, size);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  constexpr std::size_t kEnds = 12;  // the first magic; length and magic
  std::uint32_t footer = 0;
  if (size >= kEnds) std::memcpy(&footer, data + size - 8, sizeof(footer));
  if (size < kEnds || footer > size - kEnds || seed % 16 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string pages(data, data + size - 8 - footer), end(data + size - 8 - footer, data + size - 8);
  std::string changed = seed % 4 == 1 ? pages : end;
  const std::size_t room = max_size - std::min(max_size, size - changed.size());
  if (room < changed.size()) return LLVMFuzzerMutate(data, size, max_size);
  const std::size_t length = changed.size();
  changed.resize(room);
  changed.resize(LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(changed.data()), length, room));
  const std::string& new_end = seed % 4 == 1 ? end : changed;
  footer = static_cast<std::uint32_t>(new_end.size());
  std::string out = (seed % 4 == 1 ? changed : pages) + new_end;
  out.append(reinterpret_cast<const char*>(&footer), sizeof(footer)).append("PAR1");
  std::memcpy(data, out.data(), out.size());
  return out.size();
}
