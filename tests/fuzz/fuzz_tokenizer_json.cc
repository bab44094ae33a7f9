// Any bytes as tokenizer.json: an error or a tokenizer that takes any text, gives offsets inside it, and can be saved.
#include "fuzz/json_mutator.h"
#include "fuzz/temporary_file.h"
#include "tessera/base/error.h"
#include "text/load.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto tokenizer =
        tessera::text::make_tokenizer(tessera::text::load_tokenizer_json(tessera::fuzz::as_file(data, size), {}));
    const std::string text(reinterpret_cast<const char*>(data), size < 256 ? size : 256);
    for (const std::string& one : {text, std::string("the abab<s> a\xC3\xA9\xE4\xB8\xAD 12<|end|>\r\n [CLS]")}) {
      const auto encoding = tokenizer->encode(one);
      for (const auto& [begin, end] : encoding.offsets)
        if (begin < 0 || end < begin || end > static_cast<std::int64_t>(one.size())) __builtin_trap();
      tokenizer->decode(encoding.ids);
      tokenizer->decode(encoding.ids, /*skip_special_tokens=*/true);
    }
  } catch (const tessera::DataError&) {
  }
  return 0;
}
