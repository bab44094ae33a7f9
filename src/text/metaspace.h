#pragma once
#include <string_view>

namespace tessera::text {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581, SentencePiece's space

}  // namespace tessera::text
