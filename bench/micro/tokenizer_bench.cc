// How fast a tokenizer encodes and decodes, on one thread:
//
//   cmake --preset release -DTESSERA_BENCH=ON && ninja -C build/release tokenizer_bench
//   build/release/bench/tokenizer_bench TEXT_FILE TOKENIZER...
//
// Rows are the lines of the text. Prints one JSON line for each tokenizer; bench/peers/tokenizers.py prints the same
// for the Python package `tokenizers`.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/file.h"
#include "text/tokenizer.h"

namespace {

// Of the processor, not of the wall: one thread on a machine that may be busy.
double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Best of several passes over all rows, each pass after the first with warm caches.
template <class F>
double best_seconds(F pass) {
  double best = 1e9;
  const double start = cpu_seconds();
  for (int i = 0; i < 3 || cpu_seconds() - start < 2; ++i) {
    const double begin = cpu_seconds();
    pass();
    best = std::min(best, cpu_seconds() - begin);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: tokenizer_bench TEXT_FILE TOKENIZER...\n", stderr);
    return 2;
  }
  const auto text = tessera::read_file(argv[1]);
  std::vector<std::string_view> rows;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    rows.push_back(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  for (int i = 2; i < argc; ++i) {
    const double start = cpu_seconds();
    const auto tokenizer = tessera::text::open_tokenizer(argv[i]);
    const double load = cpu_seconds() - start;
    std::size_t tokens = 0;
    std::vector<std::vector<std::int32_t>> ids(rows.size());
    const double encode = best_seconds([&] {
      tokens = 0;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        ids[r] = tokenizer->encode(rows[r]).ids;
        tokens += ids[r].size();
      }
    });
    const double decode = best_seconds([&] {
      for (const auto& row : ids) tokenizer->decode(row);
    });
    fmt::print(
        "{{\"tokenizer\": \"{}\", \"load_s\": {:.3f}, \"encode_mb_s\": {:.2f}, \"decode_mb_s\": {:.2f}, \"tokens\": "
        "{}}}\n",
        argv[i], load, static_cast<double>(text.size()) / encode / 1e6, static_cast<double>(text.size()) / decode / 1e6,
        tokens);
  }
}
