// The first line as an expression of a tokenizer and of names, the rest as the text: an error, or matches inside the
// text and in order; in bounded time and memory.
#include "base/pattern.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"
#include "text/regex.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string expression(tessera::fuzz::next_part(text, '\n'));
  try {
    const tessera::text::Regex regex(expression, "fuzz");
    const auto input = tessera::text::align(text);
    const std::size_t bytes = tessera::text::to_utf8(input.data(), input.data() + input.size()).size();
    std::size_t last = 0;
    for (const auto& [begin, end] : regex.find_all(input.data(), input.data() + input.size())) {
      if (begin < last || end < begin || end > bytes) __builtin_trap();
      last = end;
    }
  } catch (const tessera::DataError&) {
  }
  try {
    (void)tessera::Pattern(expression, "fuzz").matches(text.substr(0, 200));
  } catch (const tessera::ConfigError&) {
  }
  return 0;
}
