#pragma once
// Named parts of the work as a profiler shows them: libtorch's own user scopes, so that any observer of RecordFunction
// sees them (tessera's --profile, torch's profiler in a program that links both). Without one a span costs a look at
// a flag.
#include <ATen/record_function.h>

#include <optional>
#include <string_view>

namespace tessera::tensor {

/// From its construction to its end, on one thread. Spans whose name begins with kBackwardOfUnit may overlap others.
class Span {
 public:
  /// Shown as "what name".
  explicit Span(std::string_view what, std::string_view name = {});

 private:
  std::optional<at::RecordFunction> record_;
};

inline constexpr std::string_view kBackwardOfUnit = "fsdp::backward";

}  // namespace tessera::tensor
