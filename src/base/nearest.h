#pragma once
// "Did you mean": the known name closest to a mistyped one.
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`; case and dash/underscore count as equal.
int edit_distance(std::string_view a, std::string_view b);

/// The element of `known` nearest to `name`, or "" where none is near enough to be meant.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

/// " (did you mean 'x'?)", or "" where nothing is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace tessera
