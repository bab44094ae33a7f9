// Any bytes as a GGUF file: an error, or a tokenizer that takes any text and gives offsets inside it.
#include "formats/gguf.h"
#include "fuzz/gguf_file.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"
#include "text/gguf_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  try {
    const auto header = parse_gguf_header({reinterpret_cast<const char*>(data), size}, "fuzz.gguf");
    const auto tokenizer = text::make_gguf_tokenizer(text::gguf_vocabulary(header));
    for (const std::string& one : {std::string("the abab<s> a\xC3\xA9\xE4\xB8\xAD 12<|end|>\r\n [CLS]"),
                                   std::string(reinterpret_cast<const char*>(data), std::min<std::size_t>(size, 64))}) {
      const auto encoding = tokenizer->encode(one);
      for (const auto& [begin, end] : encoding.offsets)
        if (begin < 0 || end < begin || end > static_cast<std::int64_t>(one.size())) __builtin_trap();
      tokenizer->decode(encoding.ids);
    }
  } catch (const DataError&) {
  }
  return 0;
}
