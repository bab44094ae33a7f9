#pragma once
#include <cstdint>

namespace tessera::chat {

/// A template is data from strangers: it must end, in bounded memory.
struct RenderLimits {
  std::int64_t work = 100'000'000;       // bytes made, items visited, nodes evaluated
  std::int64_t output_bytes = 64 << 20;  // of the text
  int depth = 1500;                      // nested evaluations, macros calling themselves included
};

}  // namespace tessera::chat
