// Any bytes as tokenizer.json: an error or a tokenizer that takes any text.
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"
#include "text/load.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto tokenizer =
        tessera::text::make_tokenizer(tessera::text::load_tokenizer_json(tessera::fuzz::as_file(data, size), {}));
    const std::string text(reinterpret_cast<const char*>(data), size < 256 ? size : 256);
    tokenizer->decode(tokenizer->encode(text).ids);
  } catch (const tessera::DataError&) {
  }
  return 0;
}
