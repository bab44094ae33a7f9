// Any bytes as a checkpoint's manifest.json: an error or a list of files inside the folder.
#include "checkpoint/manifest.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto manifest =
        tessera::checkpoint::parse_manifest({reinterpret_cast<const char*>(data), size}, "manifest.json");
    for (const auto& file : manifest.files)
      if (file.name.empty() || file.name.front() == '/') __builtin_trap();
  } catch (const tessera::CheckpointError&) {
  }
  return 0;
}
