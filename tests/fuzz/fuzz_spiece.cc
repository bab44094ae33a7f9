// Any bytes as spiece.model: an error or a tokenizer that takes any text. The mutator changes fields of its messages.
#include "fuzz/protobuf.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto tokenizer = tessera::text::open_tokenizer(tessera::fuzz::as_file(data, size));
    const std::string text(reinterpret_cast<const char*>(data), size < 256 ? size : 256);
    tokenizer->decode(tokenizer->encode(text).ids);
    tokenizer->decode(tokenizer->encode("A  text\xc2\xa0with \xef\xac\x81 and e\xcc\x81 .").ids);
  } catch (const tessera::DataError&) {
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, tessera::fuzz::changed_protobuf);
}
