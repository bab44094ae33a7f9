// accelerate's file and files of flags: any bytes give a configuration or a ConfigError.
#include <cstddef>
#include <cstdint>
#include <string>

#include "config/accelerate_input.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto parse : {parse_yaml, parse_json}) {
    try {
      AccelerateInput input;
      std::vector<std::string> warnings;
      read_accelerate_document(parse(text, "fuzz"), "fuzz", input, warnings);
      const AccelerateConfig config = resolve(input, "fuzz", true, warnings);
      (void)to_yaml(config);
    } catch (const tessera::ConfigError&) {
    }
  }
  return 0;
}
