#include "fsdp/plan/same_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <optional>
#include <sstream>

#include "tessera/base/error.h"

namespace tessera::fsdp {
namespace {

template <class Enum>
const char* name_in(std::initializer_list<const char*> names, Enum value) {
  return names.begin()[static_cast<std::size_t>(value)];
}

std::string name_of(std::optional<at::ScalarType> dtype) {
  return dtype ? c10::toString(*dtype) : "no cast";
}

/// A line for each option that decides which operations a rank takes part in, unit and parameter.
std::vector<std::string> lines_of(const UnitPlan& plan, const FsdpOptions& options) {
  const auto device = c10::DeviceTypeName(options.device.type(), /*lower_case=*/true);
  std::vector<std::string> lines{
      "computation on the device type " + device,
      fmt::format("state on the {}", name_in({"host", "device"}, options.state_on)),
      fmt::format(
          "the strategy {}",
          name_in({"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}, options.strategy)),
      fmt::format("the shard group size {}", options.shard_group_size),
      fmt::format("parameters in {}", name_of(options.precision.param_dtype)),
      fmt::format("reductions in {}", name_of(options.precision.reduce_dtype)),
      fmt::format("gathers of the form {}", name_in({"auto", "copy", "shared", "mapped"}, options.gather)),
      fmt::format("backward prefetch {}", name_in({"none", "pre", "post"}, options.backward_prefetch)),
      fmt::format("forward prefetch {}", options.forward_prefetch),
      fmt::format("at most {} gathers in flight", options.max_gathers_in_flight),
      fmt::format("activation checkpointing {}", options.activation_checkpointing ? "on" : "as the modules are set"),
      fmt::format("sync_module_states {}", options.sync_module_states),
      fmt::format("check_order {}", options.check_order),
      options.offload_folder.empty() ? "all in memory" : "an offload folder"};
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

void check_same_plan(const UnitPlan& plan, const FsdpOptions& options, comm::Communicator& world) {
  if (world.size() == 1) return;
  const auto lines = lines_of(plan, options);
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
  throw ConfigError(fmt::format(
      "ranks 0 and {} do not shard the same model in the same way: where rank 0 has {}, rank {} has {}. "
      "Build the model in the same order and with the same options on every rank{}",
      r, *a, r, *b,
      a == first.begin() ? "; --device auto takes a GPU only where a host has one, --device cuda everywhere" : ""));
}

}  // namespace tessera::fsdp
