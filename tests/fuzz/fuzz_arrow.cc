// Any bytes as a file of Arrow's record batches, of either form: an error or rows. The mutator changes one message of a
// stream at a time (its mark, the length of its metadata, the metadata), so that changes get past the lengths.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "data/parquet/parquet_rows.h"
#include "fuzz/read_rows.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::fuzz::read_rows(tessera::data::open_arrow, data, size);
  return 0;
}

namespace {

/// Where metadata begin, and their lengths.
std::vector<std::pair<std::size_t, std::uint32_t>> metadata_in(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint32_t kMark = 0xFFFFFFFF;
  std::vector<std::pair<std::size_t, std::uint32_t>> found;
  for (std::size_t at = 0; at + 8 <= size; at += 8) {  // messages begin at multiples of 8
    std::uint32_t words[2];
    std::memcpy(words, data + at, sizeof(words));
    if (words[0] == kMark && words[1] > 0 && words[1] <= size - at - 8) found.emplace_back(at + 8, words[1]);
  }
  return found;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  const auto messages = metadata_in(data, size);
  if (messages.empty() || seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const auto [begin, length] = messages[seed / 8 % messages.size()];
  std::string changed(data + begin, data + begin + length);
  LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(changed.data()), length, length);
  std::memcpy(data + begin, changed.data(), length);  // of the same length: what follows stays in its place
  return size;
}
