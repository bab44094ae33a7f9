// Any bytes as the pickle of a state dict, of nested dicts, and of one tensor (without the checksum that keeps a fuzzer
// of whole files out).
#include "fuzz/pickle_program.h"
#include "io/pickle.h"
#include "tessera/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto attempt = [&](const auto& read) {
    try {
      read({reinterpret_cast<const char*>(data), size}, "fuzz");
    } catch (const tessera::DataError&) {
    }
  };
  attempt(tessera::io::read_state_dict_pickle);
  attempt(tessera::io::read_nested_pickle);
  attempt(tessera::io::read_tensor_pickle);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return tessera::fuzz::mutate(data, size, max_size, seed, tessera::fuzz::changed_pickle);
}
