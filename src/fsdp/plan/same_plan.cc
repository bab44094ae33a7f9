#include "fsdp/plan/same_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

/// A line for each unit and parameter.
std::vector<std::string> lines_of(const UnitPlan& plan) {
  std::vector<std::string> lines;
  for (const auto& unit : plan.units)
    lines.push_back(fmt::format("unit '{}' ({})", unit.name, unit.module ? unit.module->class_name() : "ignored"));
  for (const auto& p : plan.parameters)
    lines.push_back(
        fmt::format("{} parameter '{}' {} [{}]{} of unit '{}'", p.tensor.requires_grad() ? "trainable" : "frozen",
                    p.name, c10::toString(p.tensor.scalar_type()), fmt::join(p.tensor.sizes(), ", "),
                    p.codec.empty() ? "" : " of " + p.codec, plan.units[static_cast<std::size_t>(p.unit)].name));
  return lines;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

void check_same_plan(const UnitPlan& plan, comm::Communicator& world) {
  if (world.size() == 1) return;
  const auto lines = lines_of(plan);
  const std::string mine = fmt::format("{}\n", fmt::join(lines, "\n"));
  const auto digests = world.all_gather_objects(std::to_string(std::hash<std::string>()(mine)));
  const auto other = std::find_if(digests.begin(), digests.end(), [&](const auto& d) { return d != digests[0]; });
  if (other == digests.end()) return;
  const auto r = static_cast<std::size_t>(other - digests.begin());
  const auto plans = world.all_gather_objects(mine);
  auto first = split_lines(plans[0]), second = split_lines(plans[r]);
  first.emplace_back("nothing more");
  second.emplace_back("nothing more");
  const auto [a, b] = std::mismatch(first.begin(), first.end(), second.begin(), second.end());
  throw ConfigError(
      fmt::format("ranks 0 and {} built different models: where rank 0 has {}, rank {} has {}. Build the "
                  "model in the same order and with the same options on every rank",
                  r, *a, r, *b));
}

}  // namespace tessera::fsdp
