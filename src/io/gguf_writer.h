#pragma once
// A GGUF file (version 3), written tensor by tensor under a temporary name.
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "io/output_file.h"

namespace tessera::io {

/// The types that the community's converter writes.
using GgufItem = std::variant<std::uint32_t, std::int32_t, float, bool, std::string, std::vector<std::string>,
                              std::vector<std::int32_t>, std::vector<float>, std::vector<std::uint8_t>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufItem>>;  // in the file's order

inline constexpr std::uint32_t kGgufF32 = 0, kGgufF16 = 1;

struct GgufTensorPlan {
  std::string name;
  std::vector<std::int64_t> shape;  // row-major
  std::uint32_t type = kGgufF32;
  std::int64_t numel() const;
  std::uint64_t bytes() const;
};

class GgufWriter {
 public:
  /// Writes everything before the tensors. CheckpointError when the file cannot be written.
  GgufWriter(const std::string& path, const GgufMetadata& metadata, std::vector<GgufTensorPlan> tensors);
  /// The next tensor in the order of the plan: all its values, row-major.
  void write(const float* values);
  /// Once all are written: the file gets its name.
  void commit();

 private:
  OutputFile file_;
  std::vector<GgufTensorPlan> tensors_;
  std::size_t next_ = 0;
  std::uint64_t at_ = 0;  // in the file
};

}  // namespace tessera::io
