#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

/// Of Trainer's names of optimizers: one that sees matrices through a low rank (GaLore, APOLLO).
constexpr bool is_low_rank_optimizer(std::string_view optim) {
  return optim.starts_with("galore_") || optim.starts_with("apollo_");
}

/// Whether Trainer's optim_target_modules choose a linear layer of this name: "all-linear", or a word that is in the
/// name or matches all of it as a regular expression.
bool is_low_rank_target(const std::vector<std::string>& targets, const std::string& module);

/// ConfigError for words that are no regular expressions, and for none.
void check_low_rank_targets(const std::vector<std::string>& targets, const std::string& optim);

/// Which sides of a matrix [rows, columns] are projected, by GaLore's proj_type: "std" the shorter, "reverse_std" the
/// longer, "left", "right", "full": both.
struct ProjectedSides {
  bool left, right;
};
constexpr ProjectedSides projected_sides(std::string_view type, std::int64_t rows, std::int64_t columns) {
  const bool tall = rows >= columns;
  const bool right = type == "right" || type == "full" || (type == "std" && tall) || (type == "reverse_std" && !tall);
  return {type == "full" || !right, right};
}

}  // namespace tessera
