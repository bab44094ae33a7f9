// How fast a tokenizer encodes and decodes, on one thread:
//
//   cmake --preset release -DTESSERA_BENCH=ON && ninja -C build/release tokenizer_bench
//   build/release/bench/tokenizer_bench TEXT_FILE TOKENIZER...
//
// Rows are the lines of the text. Prints one JSON line for each tokenizer; bench/peers/tokenizers.py prints the same
// for the Python package `tokenizers`.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "base/file.h"
#include "text/tokenizer.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Best of several passes over all rows, each pass after the first with warm caches.
template <class F>
double best_seconds(F pass) {
  double best = 1e9;
  const auto start = Clock::now();
  for (int i = 0; i < 3 || seconds_since(start) < 2; ++i) {
    const auto begin = Clock::now();
    pass();
    best = std::min(best, seconds_since(begin));
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
    const auto start = Clock::now();
    const auto tokenizer = tessera::text::open_tokenizer(argv[i]);
    const double load = seconds_since(start);
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
