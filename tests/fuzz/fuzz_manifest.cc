// Any bytes as a checkpoint's manifest.json: an error or a list of files inside the folder. The mutator mostly gives a
// changed manifest the checksum that fits.
#include "base/crc32c.h"
#include "base/json_text.h"
#include "checkpoint/manifest.h"
#include "fuzz/json_tree.h"
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

namespace {

std::optional<std::string> changed_manifest(std::string_view text, tessera::fuzz::Random& random) {
  const auto changed = tessera::fuzz::changed_json(text, random);
  auto json = changed ? tessera::fuzz::as_json(*changed) : std::nullopt;
  if (!json || !json->is_object() || random.one_in(8)) return changed;
  json->erase("manifest_crc32c");
  const std::string rest = tessera::json_text(*json);
  (*json)["manifest_crc32c"] = tessera::crc32c_text(tessera::crc32c(rest.data(), rest.size()));
  return tessera::fuzz::as_text(*json);
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, changed_manifest);
}
