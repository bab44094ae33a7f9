#pragma once
// The task behind `tessera test`: do ranks that are started with this configuration reach each other, and does training
// over them give what one rank alone gives?
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::tasks {

/// Collective. Returns 1 where a check did not hold, on every rank.
int self_test(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace tessera::tasks
