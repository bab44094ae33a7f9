// Any bytes as the .metadata of a distributed checkpoint: an error, or a description that is written and read back.
#include "fuzz/pickle_program.h"
#include "io/dcp_metadata.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto read = tessera::io::parse_dcp_metadata({reinterpret_cast<const char*>(data), size}, "fuzz");
    const auto again = tessera::io::parse_dcp_metadata(tessera::io::write_dcp_metadata(read), "again");
    if (again.tensors.size() != read.tensors.size() || again.objects.size() != read.objects.size()) __builtin_trap();
  } catch (const tessera::DataError&) {
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, tessera::fuzz::changed_pickle);
}
