#pragma once
#include <string>
#include <string_view>

namespace tessera::tasks {

/// With a line end in place of the white space between sentences. A sentence ends with . ! or ? and the quotes and
/// brackets that close behind it; the point of an abbreviation counts as an end.
std::string sentence_a_line(std::string_view text);

}  // namespace tessera::tasks
