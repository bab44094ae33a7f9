#pragma once
#include <new>
#include <string>

namespace tessera::tensor {

/// A device had no memory left. what() says where, how much, and what helps; the program's exit code is that of memory.
class OutOfDeviceMemory : public std::bad_alloc {
 public:
  /// place: "step 3, forward of unit 'lm_head'"; reason: libtorch's.
  OutOfDeviceMemory(const std::string& place, const std::string& reason);
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};

}  // namespace tessera::tensor
