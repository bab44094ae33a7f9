// accelerate's file, files of flags, and the conversions of old files: any bytes give a configuration or a ConfigError.
#include <cstddef>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "config/accelerate_convert.h"
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
      std::vector<std::string> notes;
      (void)to_fsdp2(parse(text, "fuzz"), "fuzz", notes);
      (void)updated_document(parse(text, "fuzz"), "fuzz");
    } catch (const tessera::ConfigError&) {
    }
  }
  return 0;
}
