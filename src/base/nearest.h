#pragma once
// "Did you mean": the known name closest to a mistyped one.
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`; case and dash/underscore count as equal.
/// `limit` where it takes as many or more.
int edit_distance(std::string_view a, std::string_view b, int limit = std::numeric_limits<int>::max());

/// The element of `known` nearest to `name`, or "" where none is near enough to be meant. One that is spelt like `name`
/// comes first; then one that goes on with or shortens it, or has the same words and others between them (of the
/// train_batch_size and eval_batch_size that batch_size may mean, the first in `known`); then by edits.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

/// " (did you mean 'x'?)", or "" where nothing is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace tessera
