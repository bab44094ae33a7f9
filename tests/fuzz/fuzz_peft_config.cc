// Any bytes as adapter_config.json: an error, or settings that are written and read back to the same, and targets that
// can be looked for. With the first byte odd the rest lacks a peft_type and gets one, as `--peft_config` might.
#include "families/config_reader.h"
#include "fuzz/temporary_file.h"
#include "peft/adapter_config.h"
#include "peft/targets.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tessera;
  static const fuzz::Folder folder;
  static const auto types = peft::method_types();
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1 && text.starts_with('{'))
    text.insert(1, "\"peft_type\": \"" + types[data[0] / 2 % types.size()] + "\"" + (text.size() > 2 ? ", " : ""));
  try {
    const auto method = peft::read_peft_file(folder.write("adapter_config.json", text));
    const std::string written = peft::adapter_config_json(*method);
    folder.write("adapter_config.json", written);
    if (peft::adapter_config_json(*peft::read_adapter_config(folder.path())) != written) __builtin_trap();
    method->check();
    for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) (void)peft::is_target(name, *method);
  } catch (const ConfigError&) {
  }
  return 0;
}
