// Any bytes as the pickle of a state dict (without the checksum that keeps a fuzzer of whole files out).
#include "io/pickle.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    tessera::io::read_state_dict_pickle({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const tessera::DataError&) {
  }
  return 0;
}
