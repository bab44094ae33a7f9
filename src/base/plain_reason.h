#pragma once
#include <exception>
#include <string>
#include <string_view>

namespace tessera {

/// What a library says of an error (nlohmann's and simdjson's JSON, std::filesystem, libtorch, the standard
/// library) in words for a user: without names of exceptions, codes and stack traces. Other texts stay, but for what
/// follows their first line.
std::string plain_reason(std::string_view what);
/// The same of an exception; errors of this project stay as they are.
std::string plain_reason(const std::exception& error);

}  // namespace tessera
